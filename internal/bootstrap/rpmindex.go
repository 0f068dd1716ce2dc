package bootstrap

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"

	"sconce.dev/sconce/internal/debian"
	"sconce.dev/sconce/internal/fault"
	"sconce.dev/sconce/internal/fetch"
	"sconce.dev/sconce/internal/rpm"
	"sconce.dev/sconce/internal/store"
)

// maxLists bounds a list of packages, in bytes uncompressed. Fedora's has 300 MB, its list of files 800 MB.
const maxLists = 4 << 30

// repomd fetches a repository's index of indices. A signature that is there must be good; where there is none, nothing that the index
// says is believed before the packages' own signatures are (see [verifyPackages]).
func (x *indices) repomd(ctx context.Context, repo *rpmRepository) (*rpm.Repomd, error) {
	address := repo.url + "/repodata/repomd.xml"
	text, err := x.get(ctx, address)
	if err != nil {
		err = fmt.Errorf("the index of %s cannot be read: %w", fetch.Redact(repo.url), err)
		return nil, fault.Hint(err, "a repository's address is that of the directory in which repodata is; base.bootstrap.mirror names another mirror; proxies are taken from http_proxy and https_proxy")
	}
	if !x.r.Trusted {
		signature, err := x.get(ctx, address+".asc")
		switch {
		case err == nil:
			if err := x.signs.believe(func(k *debian.Keyring) error { return k.Verify(text, signature, x.r.Now) }); err != nil {
				return nil, explainRepository(fmt.Errorf("the index of %s is not to be believed: %w", fetch.Redact(repo.url), err), err)
			}
			repo.signed = true
		case !missing(err):
			return nil, err
		}
	}
	r, err := rpm.ParseRepomd(text)
	if err != nil {
		return nil, fmt.Errorf("the repository %s: %w", fetch.Redact(repo.url), err)
	}
	if r.Date.After(x.r.Now.Add(day)) {
		return nil, fault.Hint(fmt.Errorf("the index of %s is of %s, which is in the future", fetch.Redact(repo.url), r.Date.Format(time.DateOnly)),
			"the clock of this machine may be wrong")
	}
	if !x.r.Trusted {
		err = x.noOlder(repo, r.Date)
	}
	return r, err
}

// noOlder refuses an index that is older than one that was seen at the same address: a good signature does not say that an index is the
// newest. Servers of one name may be a day apart.
func (x *indices) noOlder(repo *rpmRepository, date time.Time) error {
	sum := sha256.Sum256([]byte(repo.url))
	key := hex.EncodeToString(sum[:])
	var seen int64
	if _, err := x.store.GetRecord(store.KindRepomd, key, &seen); err != nil {
		return err
	}
	newest := time.Unix(seen, 0).UTC()
	switch {
	case date.Before(newest.Add(-day)):
		return fault.Hint(fmt.Errorf("the index of %s is of %s, and one of %s was there before: it hides newer packages", fetch.Redact(repo.url), date.Format(time.DateOnly), newest.Format(time.DateOnly)),
			"take another mirror with base.bootstrap.mirror; a repository of your own that goes back in time is believed with trusted = true")
	case date.After(newest):
		return x.store.PutRecord(store.KindRepomd, key, nil, date.Unix())
	}
	return nil
}

const day = 24 * time.Hour

// explainRepository says what may be done about a signature that does not count.
func explainRepository(err, cause error) error {
	var unknown *debian.UnknownKeyError
	hint := "the mirror may be damaged, or be another's: take another one with base.bootstrap.mirror"
	switch {
	case errors.As(cause, &unknown):
		hint = "base.bootstrap.keys names the files with the keys that sign it: all of them, and no others count"
	case errors.Is(cause, rpm.ErrUnsigned), errors.Is(cause, debian.ErrUnsigned):
		hint = "a repository of your own that nobody signs is believed with trusted = true under [base] bootstrap"
	}
	return fault.Hint(err, hint)
}

// list reads a list that an index names by hash.
func (x *indices) list(ctx context.Context, repo *rpmRepository, index rpm.Index, what string, read func(io.Reader) error) error {
	digest, err := store.ParseDigest("sha256:" + index.SHA256)
	if err != nil {
		return err
	}
	err = x.fetch.Blob(ctx, fetch.Request{URL: repo.url + "/" + escape(index.Location), Digest: digest, Size: index.Size, Name: what + " of " + repo.name, OfRecipe: true})
	if err != nil {
		return lies(err)
	}
	if err := x.readList(digest, maxLists, fmt.Sprintf("%d GiB", maxLists>>30), read); err != nil {
		return fault.Hint(fmt.Errorf("the %s of %s: %w", what, fetch.Redact(repo.url), err), "the repository is damaged: take another mirror")
	}
	return nil
}

// rpmUniverse reads the lists of packages of all repositories, and the date of the newest.
func (x *indices) rpmUniverse(ctx context.Context, all []*rpmRepository) (*rpm.Universe, []*rpm.Repomd, error) {
	u := rpm.NewUniverse(rpmArchitectures[x.r.Architecture])
	var indices []*rpm.Repomd
	for i, repo := range all {
		r, err := x.repomd(ctx, repo)
		if err != nil {
			return nil, nil, err
		}
		indices = append(indices, r)
		err = x.list(ctx, repo, r.Indices["primary"], "packages", func(text io.Reader) error {
			return rpm.ReadPrimary(text, func(p *rpm.Package) error {
				p.Repository = i
				u.Add(p)
				return nil
			})
		})
		if err != nil {
			return nil, nil, err
		}
	}
	return u, indices, nil
}

// fileLists adds the files to the universe that packages require and no list of packages has.
func (x *indices) fileLists(ctx context.Context, all []*rpmRepository, indices []*rpm.Repomd, u *rpm.Universe) error {
	wanted := u.RequiredFiles()
	for i, repo := range all {
		index, ok := indices[i].Indices["filelists"]
		if !ok {
			continue
		}
		err := x.list(ctx, repo, index, "files", func(text io.Reader) error { return rpm.ReadFileLists(text, wanted, u.AddFile) })
		if err != nil {
			return err
		}
	}
	u.FilesKnown()
	return nil
}
