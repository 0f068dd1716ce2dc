package conda

import (
	"encoding/json"
	"maps"
	"strconv"

	"sconce.dev/sconce/internal/layer"
)

// recordPath is the file by which conda and others know an installed package.
func (p Package) recordPath() string { return "conda-meta/" + p.dist() + ".json" }

// dist is the package's name, version and build in one, as archives and records are named.
func (p Package) dist() string { return p.Name + "-" + p.Version + "-" + p.Build }

// linkCopy says that files were copied into the prefix.
const linkCopy = 3

// record makes the file of conda-meta (CEP 32): what the package says of itself, what the channel or the lock says instead, and
// the files as they are in the prefix. Caches, which no image has, are "".
func (u *unpacked) record(size int64) ([]byte, error) {
	p := u.pkg
	r := maps.Clone(u.index)
	maps.Copy(r, map[string]any{
		"name": p.Name, "version": p.Version, "build": p.Build, "build_number": u.buildNumber(), "subdir": p.Subdir,
		"channel": p.Channel, "url": p.URL, "fn": p.File, "sha256": p.SHA256.Hex(), "size": size,
		"depends": append([]string{}, p.Depends...), "constrains": append([]string{}, p.Constrains...),
		"link":                  map[string]any{"source": "", "type": linkCopy},
		"extracted_package_dir": "", "package_tarball_full_path": "",
	})
	for key, value := range map[string]string{"md5": p.MD5, "license": p.License, "noarch": p.Noarch, "python_site_packages_path": p.SitePackages} {
		if value != "" {
			r[key] = value
		}
	}
	files, paths := []string{}, []map[string]any{}
	for _, f := range u.files {
		if f.kind != layer.Dir {
			files = append(files, f.path)
		}
		paths = append(paths, f.record())
	}
	r["files"], r["paths_data"] = files, map[string]any{"paths_version": 1, "paths": paths}
	data, err := json.MarshalIndent(r, "", "  ")
	return append(data, '\n'), err
}

// buildNumber is the one in the package: locks need not have it, and no channel changes it.
func (u *unpacked) buildNumber() int {
	if n, ok := u.index["build_number"].(json.Number); ok {
		if i, err := strconv.Atoi(n.String()); err == nil {
			return i
		}
	}
	return u.pkg.BuildNumber
}

// record is a file in the record of its package.
func (f *file) record() map[string]any {
	m := map[string]any{"_path": f.path, "path_type": f.entry.Type}
	if f.recorded != "" {
		m["path_type"] = f.recorded
	}
	if f.entry.NoLink {
		m["no_link"] = true
	}
	if f.entry.Placeholder != "" {
		m["prefix_placeholder"], m["file_mode"] = f.entry.Placeholder, f.entry.FileMode
	}
	if f.kind == layer.Regular {
		m["size_in_bytes"], m["sha256_in_prefix"] = f.size, f.sha256
		if f.original != "" {
			m["sha256"] = f.original
		}
	} else if f.entry.SHA256 != "" && f.entry.Size != nil {
		m["size_in_bytes"], m["sha256"] = *f.entry.Size, f.entry.SHA256
	}
	return m
}
