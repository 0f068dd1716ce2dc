package audit

import (
	"testing"

	"sconce.dev/sconce/internal/facts"

	"sconce.dev/sconce/internal/cluster"
	"sconce.dev/sconce/internal/layer"
)

func TestFileRules(t *testing.T) {
	checkRule(
		t, "files-hidden",
		ruleCase{
			"hidden", imageWith().withFiles(map[string]string{"tmp/model/x": "x", "run/x": "x", "users/x": "x", "dev/null": "", "var/tmp/x": "x"}).withPaths(
				regularInfo("dev/null", 0o644, 3), regularInfo("run/x", 0o644, 1000), regularInfo("tmp/model/x", 0o644, 5e9), regularInfo("users/x", 0o644, 5),
				regularInfo("usr/bin/x", 0o755, 5), regularInfo("var/tmp/x", 0o644, 7),
			),
			cluster.Profile{Runtime: cluster.Pyxis, Hides: []string{"/users/", "/nothing"}},
			[]string{"warning: pyxis will hide 3 files of 5.0 GB that the image has in /run, /tmp, /users"},
		},
		ruleCase{
			"Apptainer", imageWith().withFiles(map[string]string{"var/tmp/x": "x", "run/x": "x"}).withPaths(
				regularInfo("run/x", 0o644, 5), regularInfo("var/tmp/x", 0o644, 7)), onApptainer,
			[]string{"warning: Apptainer will hide 1 file of 7 B that the image has in /var/tmp"},
		},
		ruleCase{"clean", imageWith().withFiles(map[string]string{"tmp/x": ""}).withPaths(regularInfo("tmp/x", 0o644, 0)), onEnroot, nil},
		ruleCase{"unknown", imageWith().withFiles(map[string]string{"tmp/x": "x"}).withPaths(regularInfo("tmp/x", 0o644, 1)), cluster.Profile{}, nil},
	)
	checkRule(
		t, "files-setuid",
		ruleCase{"both", imageWith().withPaths(regularInfo("opt/bin/su", 0o4755, 5), regularInfo("usr/bin/su", 0o4755, 5)), cluster.Profile{}, []string{
			"warning: 1 program with setuid or setgid that no distribution brings", "note: 1 program of the distribution with setuid or setgid, such as su",
		}},
		ruleCase{"clean", imageWith().withPaths(regularInfo("usr/bin/ls", 0o755, 5), directoryInfo("var/mail", 0o2775)), cluster.Profile{}, nil},
	)
	checkRule(
		t, "files-world-writable",
		ruleCase{"open", imageWith().withPaths(directoryInfo("opt/data", 0o777), regularInfo("opt/run.sh", 0o757, 5)), cluster.Profile{}, []string{
			"warning: everybody may write to 2 objects, such as /opt/data",
		}},
		ruleCase{"clean", imageWith().withPaths(directoryInfo("tmp", 0o1777), directoryInfo("tmp/x", 0o777),
			facts.Info{Path: "bin", Type: layer.Symlink, Mode: 0o777}, regularInfo("x", 0o664, 5)), cluster.Profile{}, nil},
	)
	checkRule(
		t, "files-unreadable",
		ruleCase{
			"closed", imageWith().withPaths(
				regularInfo("etc/app.conf", 0o600, 10), regularInfo("etc/passwd-", 0o600, 10), regularInfo("etc/shadow", 0o640, 10), directoryInfo("root", 0o700), regularInfo("root/.bashrc", 0o644, 10),
				directoryInfo("root/miniconda3", 0o755), regularInfo("root/miniconda3/python", 0o755, 2e6), regularInfo("root/miniconda3/secret", 0o600, 1e6),
				regularInfo("usr/bin/sudo", 0o4111, 10), directoryInfo("var/private", 0o700), regularInfo("var/private/x", 0o600, 3),
			), onApptainer,
			[]string{"warning: users cannot read 3 files of 3.0 MB in /etc, /root"},
		},
		ruleCase{"own user", imageWith().withPaths(regularInfo("etc/app.conf", 0o600, 10)), onEnroot, nil},
	)
	checkRule(
		t, "files-devices",
		ruleCase{"device", imageWith().withPaths(facts.Info{Path: "dev/null", Type: layer.Char}, facts.Info{Path: "opt/root/dev/null", Type: layer.Char}), cluster.Profile{}, []string{
			"note: the image has 1 device file outside /dev",
		}},
	)
	checkRule(
		t, "files-caches",
		ruleCase{"left", imageWith().withPaths(regularInfo("root/.cache/pip/http/a", 0o600, 6e9), regularInfo("var/lib/apt/lists/x", 0o644, 1e6),
			regularInfo("opt/conda/pkgs/x.conda", 0o644, 1e6)), cluster.Profile{}, []string{
			"note: caches of package managers take 6.0 GB in 3 files, in /root/.cache/pip, /var/lib/apt/lists, /opt/conda/pkgs",
		}},
		ruleCase{"small", imageWith().withPaths(regularInfo("var/lib/apt/lists/lock", 0o644, 10)), cluster.Profile{}, nil},
	)
	checkRule(
		t, "files-static",
		ruleCase{"toolkit", imageWith().withPaths(regularInfo("usr/local/cuda/lib64/libcublas_static.a", 0o644, 900e6), regularInfo("usr/lib/libc.a", 0o644, 20e6)), cluster.Profile{}, []string{
			"note: static libraries of more than 10.0 MB take 920.0 MB in 2 files",
		}},
		ruleCase{"small", imageWith().withPaths(regularInfo("usr/lib/libc.a", 0o644, 20e6)), cluster.Profile{}, nil},
	)
}

func TestSecretsRule(t *testing.T) {
	files := map[string]string{
		"root/.ssh/id_rsa":                    "\n-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n",
		"root/.docker/config.json":            `{"auths": {"r.example.org": {"auth": "bWU6c2VjcmV0"}}}`,
		"root/.config/pip/pip.conf":           "[global]\nindex-url = https://me:secret@example.org/simple\n",
		"home/ada/.cache/huggingface/token":   "hf_abcdefghijklmnopqrstuvwxyz",
		"root/.netrc":                         "machine example.org login me password secret\n",
		"etc/ssl/certs/ca.pem":                "-----BEGIN CERTIFICATE-----\nMII\n",
		"opt/venv/lib/site-packages/t/k.pem":  "-----BEGIN PRIVATE KEY-----\nMII\n",
		"opt/app/tests/server.key":            "-----BEGIN PRIVATE KEY-----\nMII\n",
		"opt/other/.docker/config.json":       `{"auths": {"r.example.org": {}}, "credsStore": "pass"}`,
		"etc/pip.conf":                        "[global]\nindex-url = https://pypi.example.org/simple\n",
		"etc/apt/sources.list":                "deb http://deb.example.org/debian bookworm main\n",
		"opt/large.pem":                       "",
		"usr/share/doc/openssl/example/a.key": "-----BEGIN PRIVATE KEY-----\nMII\n",
	}
	f := imageWith().withFiles(files)
	for p, data := range files {
		f.Paths = append(f.Paths, regularInfo(p, 0o600, int64(len(data))))
	}
	f.Paths = append(f.Paths, regularInfo("opt/large.pem", 0o644, 1e9))
	sortInfos(f.Paths)
	checkRule(t, "files-secrets", ruleCase{"secrets", f, cluster.Profile{}, []string{
		"warning: /home/ada/.cache/huggingface/token has a token of Hugging Face, on line 1",
		"warning: /root/.config/pip/pip.conf has a password in a URL, on line 2",
		"warning: /root/.docker/config.json has the password of a registry, on line 1",
		"warning: /root/.netrc has a password, on line 1",
		"warning: /root/.ssh/id_rsa has a private key, on line 2",
	}})
}
