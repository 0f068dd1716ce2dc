package sbatch_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/sbatch"
	"sconce.dev/sconce/internal/slurmtest"
)

// Slurm reads the directives that the package reads, and no others: what is late or misspelt has no effect.
func TestDirectivesAsSlurm(t *testing.T) {
	c := slurmtest.Start(t, slurmtest.Options{})
	for name, script := range map[string]string{
		"one a line":         "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH -J first\n#SBATCH --time=7\ntrue\n",
		"several, and short": "#!/bin/bash\n#SBATCH -N2 -J second -t 0:08:00 # why\ntrue\n",
		"blanks and quotes":  "#!/bin/bash\n\n# words\n\n#SBATCH --job-name=\"third\"\n   \n#SBATCH\t--nodes 2\n#SBATCH --time='9'\ntrue\n",
		"variables":          "#!/bin/bash\n#SBATCH -J x$HOME${USER} -t 12\ntrue\n",
		"late":               "#!/bin/bash\n#SBATCH -J fourth --time=10\nset -e\n#SBATCH --nodes=2\n",
		"other letters":      "#!/bin/bash\n#SBATCH -J fifth -t 11\n#sbatch --nodes=2\n#SBTACH --nodes=2\n##SBATCH --nodes=2\n #SBATCH --nodes=2\n",
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(c.SharedDir, "job.sbatch")
			if err := os.WriteFile(file, []byte(script), 0o644); err != nil {
				t.Fatal(err)
			}
			id := strings.TrimSpace(c.Run(slurmtest.Alice, "sbatch --hold --parsable /shared/job.sbatch"))
			shown := c.Run(slurmtest.Alice, "scontrol show job "+id)
			c.Run(slurmtest.Alice, "scancel "+id)
			want := map[string]string{"nodes": "1"}
			for _, o := range sbatch.Parse("job.sbatch", []byte(script)).Options() {
				want[o.Name] = o.Value
			}
			for option, field := range map[string]string{"nodes": "NumNodes", "job-name": "JobName"} {
				m := regexp.MustCompile(field + `=([^\s-]+)`).FindStringSubmatch(shown)
				if m == nil || m[1] != want[option] {
					t.Errorf("%s: Slurm has %v, and the reader %q", field, m, want[option])
				}
			}
			if m := regexp.MustCompile(`TimeLimit=00:(\d\d):00`).FindStringSubmatch(shown); m == nil || !strings.Contains("0"+want["time"], m[1]) {
				t.Errorf("the time: Slurm has %v, and the reader %q", m, want["time"])
			}
		})
	}
}
