package lock

import (
	"strings"
	"testing"
)

// TestRemedies: what uv 0.13 says when it finds nothing is answered.
func TestRemedies(t *testing.T) {
	for text, want := range map[string]string{
		"error: No solution found when resolving dependencies\n  cause: Because no-such-zz was not found in the package registry and you require no-such-zz, we can conclude that your requirements are unsatisfiable.":                                   "spelling of no-such-zz;",
		"  cause: Because there is no version of six==99 and you require six==99, we can conclude that your requirements are unsatisfiable.":                                                                                                              "version of six that there is",
		"error: Request failed after 3 retries in 9.0s\n  cause: Failed to fetch: http://127.0.0.1:9/simple/six/\n  cause: error sending request for url (http://127.0.0.1:9/simple/six/)\n  cause: client error (Connect)":                               "HTTPS_PROXY",
		"error: Failed to fetch: https://x/simple/six/\n  cause: error sending request for url (https://x/simple/six/)\n  cause: client error (Connect)\n  cause: invalid peer certificate: UnknownIssuer":                                                "SSL_CERT_FILE",
		"  cause: Because six was not found in the cache and you require six, we can conclude that your requirements are unsatisfiable.\n\nhint: Packages were unavailable because the network was disabled.":                                             "without --offline",
		"  cause: Because there is no version of torch==2.0 and you require torch==2.0, we can conclude that your requirements are unsatisfiable.\n\nhint: Wheels are required for `torch` because building from source is disabled for all packages (…)": "torch",
		"error: Distribution not found at: file:///home/me/app/nowhere":                                                "relative to the recipe's directory: there is nothing at /home/me/app/nowhere",
		"cause: Unsupported hash algorithm (expected one of: `md5`, …) on: `sha1=b2edb0`":                              "another index or mirror",
		"Because cuda-toolkit[cublas]==13.0.2 has no wheels with a matching Python implementation tag (e.g., `cp312`)": "cuda-toolkit has no wheel",
		"error: something else": "",
	} {
		got := uvHint(text, &Python{})
		if (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s\nis answered by %q, want %q", text, got, want)
		}
	}
}
