package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func writePolicy(t *testing.T, text string) (Policy, error) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, PolicyFile), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return LoadPolicy(dir)
}

func TestPolicy(t *testing.T) {
	p, err := writePolicy(t, "max-size = \"60%\"\nmax-age = \"90d\"\nuser-size = \"500GB\"\n[users]\nroot = \"none\"\n1234 = \"2TB\"\nwho-has-left = \"1GB\"\n")
	if err != nil {
		t.Fatal(err)
	}
	if p.MaxSize == nil || p.MaxSize.Of(1000) != 600 || p.MaxAge != 90*24*time.Hour {
		t.Errorf("%+v", p)
	}
	for uid, want := range map[uint32]int64{0: 0, 1234: 2e12, 1: 5e11} {
		if got := p.OfUser(uid); got != want {
			t.Errorf("user %d may have %d, want %d", uid, got, want)
		}
	}
	if p, err := LoadPolicy(t.TempDir()); err != nil || p.MaxSize != nil || p.OfUser(0) != 0 {
		t.Errorf("no policy: %+v, %v", p, err)
	}
}

func TestPolicyErrors(t *testing.T) {
	for text, want := range map[string]string{
		`max-sise = "1GB"`:             "max-sise",
		`max-age = "old"`:              "max-age",
		`max-age = "0"`:                "max-age",
		`user-size = "30%"`:            "user-size",
		"[users]\nroot = \"plenty\"\n": "root",
	} {
		if _, err := writePolicy(t, text); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), PolicyFile) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
