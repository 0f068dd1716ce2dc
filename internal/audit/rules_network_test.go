package audit

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sconce.dev/sconce/internal/facts"
	"sconce.dev/sconce/internal/tooltest"

	"sconce.dev/sconce/internal/cluster"
)

// libraries compiles shared libraries and returns them by name.
func libraries(t *testing.T) map[string]string {
	t.Helper()
	tooltest.Path(t, "gcc")
	cmd := exec.Command("sh", "-e", "-c", `
		lib() { out=$1 soname=$2 src=$3; shift 3; echo "$src" > s.c; gcc -w -nostdlib -shared -fPIC -Wl,-soname,$soname -Wl,--no-as-needed -o $out s.c "$@"; }
		lib libcxi.so.1 libcxi.so.1 'int cxi;'
		lib libefa.so.1 libefa.so.1 'int efa;'
		lib fabric-cxi libfabric.so.1 'int fi;' -L. -l:libcxi.so.1
		lib fabric-efa libfabric.so.1 'int fi;' -L. -l:libefa.so.1
		cp fabric-cxi libfabric.so.1
		lib ofi-11 libnccl-net.so 'int ncclNetPlugin_v9, ncclNetPlugin_v11;' -L. -l:libfabric.so.1
		lib ofi-5 libnccl-net.so 'int ncclNetPlugin_v4, ncclNetPlugin_v5;' -L. -l:libfabric.so.1
		lib sharp libnccl-net.so 'int ncclNetPlugin_v9;'
		lib nccl libnccl.so.2 'int ncclCommInitRank;' -Wl,-rpath,'$ORIGIN'
		lib verbs libibverbs.so.1 'int ibv;'`)
	cmd.Dir = t.TempDir()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	found := map[string]string{}
	entries, err := os.ReadDir(cmd.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(cmd.Dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		found[e.Name()] = string(data)
	}
	return found
}

const (
	ncclPath   = "opt/venv/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2"
	pluginPath = "opt/ofi/lib/libnccl-net.so"
)

// networked is an image with NCCL and these files, at paths in the image: names in libs.
func networked(version string, libs, files map[string]string, env ...string) *sample {
	f := imageWith(append(env, "LD_LIBRARY_PATH=/opt/ofi/lib")...)
	all := map[string]string{ncclPath: libs["nccl"]}
	for p, name := range files {
		all[p] = libs[name]
	}
	f.withFiles(all)
	f.Objects = []facts.Object{{Path: ncclPath, Kind: "shared", Soname: "libnccl.so.2"}}
	for p := range files {
		f.Objects = append(f.Objects, facts.Object{Path: p, Kind: "shared"})
	}
	f.Pythons = []facts.Python{{
		Dir: "opt/venv/lib/python3.11/site-packages", Distributions: []facts.Distribution{{Name: "nvidia-nccl-cu12", Version: version}},
	}}
	return f
}

func TestNCCLRules(t *testing.T) {
	libs := libraries(t)
	nothing := map[string]string{}
	ofi := map[string]string{pluginPath: "ofi-11", "opt/ofi/lib/libfabric.so.1": "fabric-cxi", "opt/ofi/lib/libcxi.so.1": "libcxi.so.1"}
	efa := map[string]string{pluginPath: "ofi-11", "opt/ofi/lib/libfabric.so.1": "fabric-efa", "opt/ofi/lib/libefa.so.1": "libefa.so.1"}
	old := map[string]string{pluginPath: "ofi-5", "opt/ofi/lib/libfabric.so.1": "fabric-cxi", "opt/ofi/lib/libcxi.so.1": "libcxi.so.1"}
	aside := map[string]string{"opt/amazon/lib/libnccl-net-ofi.so": "ofi-11"}
	sharp := map[string]string{pluginPath: "sharp"}
	provider := map[string]string{pluginPath: "ofi-11", "opt/ofi/lib/libfabric.so.1": "fabric-efa", "opt/ofi/lib/libfabric/libcxi-fi.so": "libcxi.so.1"}
	injecting := cluster.Profile{Fabric: cluster.Slingshot, NCCLNet: "ofi"}
	const silent = "warning: /" + ncclPath + " finds no network plugin for Slingshot: between nodes it will use TCP"

	checkRule(
		t, "network-plugin-missing",
		ruleCase{"none", networked("2.27.5", libs, nothing), onSlingshot, []string{silent}},
		ruleCase{"not on the path", networked("2.27.5", libs, aside), onSlingshot, []string{silent}},
		ruleCase{"there", networked("2.27.5", libs, ofi), onSlingshot, nil},
		ruleCase{"brought", networked("2.27.5", libs, nothing), injecting, nil},
		ruleCase{"no need", networked("2.27.5", libs, nothing), onInfiniBand, nil},
		ruleCase{"no NCCL", imageWith(), onSlingshot, nil},
	)
	checkRule(
		t, "network-plugin-version",
		ruleCase{"too old", networked("2.27.5", libs, old), onSlingshot, []string{
			"warning: /" + pluginPath + " has no version of the plugin's interface that NCCL 2.27.5 looks for (6 to 10)",
		}},
		ruleCase{"too new", networked("2.18.3", libs, ofi, "NCCL_NET=AWS Libfabric"), onSlingshot, []string{
			"error: /" + pluginPath + " has no version of the plugin's interface that NCCL 2.18.3 looks for (4 to 6)" +
				`, and NCCL_NET="AWS Libfabric" allows no other network`,
		}},
		ruleCase{"fits", networked("2.27.5", libs, ofi), onSlingshot, nil},
		ruleCase{"old NCCL", networked("2.12.12", libs, old), onSlingshot, nil},
		ruleCase{"newer than the table", networked("2.99.1", libs, old), onSlingshot, nil},
		ruleCase{"unknown", networked("", libs, old), onSlingshot, nil},
	)
	checkRule(
		t, "network-plugin-provider",
		ruleCase{"EFA's", networked("2.27.5", libs, efa), onSlingshot, []string{
			"warning: NCCL will load /" + pluginPath + ", whose /opt/ofi/lib/libfabric.so.1 has no provider cxi for Slingshot",
		}},
		ruleCase{"no libfabric", networked("2.27.5", libs, map[string]string{pluginPath: "ofi-11"}), onSlingshot, []string{
			"warning: NCCL will load /" + pluginPath + ", which needs a libfabric.so.1 that the image does not have",
		}},
		ruleCase{"InfiniBand's", networked("2.27.5", libs, sharp), onSlingshot, []string{
			"warning: NCCL will load /" + pluginPath + ", which does not use libfabric and so cannot use Slingshot",
		}},
		ruleCase{"there", networked("2.27.5", libs, ofi), onSlingshot, nil},
		ruleCase{"beside", networked("2.27.5", libs, provider), onSlingshot, nil},
		ruleCase{"on EFA", networked("2.27.5", libs, efa), cluster.Profile{Fabric: cluster.EFA}, nil},
		ruleCase{"no need", networked("2.27.5", libs, sharp), onInfiniBand, nil},
	)
	checkRule(
		t, "env-nccl-net",
		ruleCase{"TCP", imageWith("NCCL_NET=Socket"), onInfiniBand, []string{"warning: NCCL_NET=Socket has NCCL use TCP although the nodes have InfiniBand"}},
		ruleCase{"InfiniBand", imageWith("NCCL_NET=IB"), onSlingshot, []string{
			"error: NCCL_NET=IB asks for InfiniBand, but the nodes have Slingshot: NCCL will stop",
		}},
		ruleCase{"plugin", networked("2.27.5", libs, nothing, "NCCL_NET=AWS Libfabric"), onSlingshot, []string{
			`error: NCCL_NET="AWS Libfabric" needs a network plugin, and NCCL finds none in the image`,
		}},
		ruleCase{"brought", networked("2.27.5", libs, nothing, "NCCL_NET=AWS Libfabric"), injecting, nil},
		ruleCase{"there", networked("2.27.5", libs, ofi, "NCCL_NET=AWS Libfabric"), onSlingshot, nil},
		ruleCase{"TCP on Ethernet", imageWith("NCCL_NET=Socket"), cluster.Profile{Fabric: cluster.Ethernet}, nil},
	)
	checkRule(
		t, "env-nccl-plugin",
		ruleCase{"none", imageWith("NCCL_NET_PLUGIN=none"), onSlingshot, []string{
			"warning: NCCL_NET_PLUGIN=none keeps NCCL from loading the plugin for Slingshot",
		}},
		ruleCase{"hides", imageWith("NCCL_NET_PLUGIN=spcx"), injecting, []string{"warning: NCCL_NET_PLUGIN=spcx hides the plugin ofi that the runtime brings"}},
		ruleCase{"missing", networked("2.27.5", libs, ofi, "NCCL_NET_PLUGIN=spcx"), onSlingshot, []string{
			"warning: NCCL_NET_PLUGIN=spcx names a plugin that NCCL does not find in the image",
		}},
		ruleCase{"there", networked("2.27.5", libs, map[string]string{"opt/ofi/lib/libnccl-net-ofi.so": "ofi-11"}, "NCCL_NET_PLUGIN=ofi"), onSlingshot, nil},
		ruleCase{"path", networked("2.27.5", libs, ofi, "NCCL_NET_PLUGIN=/"+pluginPath), onSlingshot, nil},
		ruleCase{"brought", imageWith("NCCL_NET_PLUGIN=ofi"), injecting, nil},
	)
	verbs := map[string]string{"opt/ofi/lib/libibverbs.so.1": "verbs"}
	driver := map[string]string{"opt/ofi/lib/libibverbs.so.1": "verbs", "usr/lib/x86_64-linux-gnu/libibverbs/libmlx5-rdmav34.so": "verbs"}
	checkRule(
		t, "network-verbs-missing",
		ruleCase{"none", networked("2.27.5", libs, nothing), onInfiniBand, []string{
			"warning: /" + ncclPath + " finds no libibverbs.so.1: between nodes it will use TCP",
		}},
		ruleCase{"no driver", networked("2.27.5", libs, verbs), onInfiniBand, []string{
			"warning: /opt/ofi/lib/libibverbs.so.1 is there, but no driver of any adapter (such as libmlx5-rdmav34.so)",
		}},
		ruleCase{"there", networked("2.27.5", libs, driver), onInfiniBand, nil},
		ruleCase{"brought", networked("2.27.5", libs, nothing), cluster.Profile{Fabric: cluster.RoCE, Injects: []string{"libibverbs.so.1"}}, nil},
	)
}

func TestMPIRules(t *testing.T) {
	withObjects := func(objects ...facts.Object) *sample {
		f := imageWith()
		for _, o := range objects {
			if o.Kind == "" {
				o.Kind = "shared"
			}
			f.Objects = append(f.Objects, o)
		}
		return f
	}
	open4 := facts.Object{Path: "usr/lib/libmpi.so.40.30", Soname: "libmpi.so.40", Needed: []string{"libopen-rte.so.40", "libopen-pal.so.40"}}
	open5 := facts.Object{Path: "usr/lib/libmpi.so.40.40", Soname: "libmpi.so.40", Needed: []string{"libopen-pal.so.80", "libpmix.so.2"}}
	mpich4 := facts.Object{Path: "usr/lib/libmpi.so.12.3", Soname: "libmpi.so.12"}
	pmixed := facts.Object{Path: "usr/lib/libmpi.so.12.3", Soname: "libmpi.so.12", Needed: []string{"libpmix.so.2"}}
	program := facts.Object{Path: "opt/bin/app", Kind: "pie", Needed: []string{"libmpi.so.40", "libc.so.6"}}
	optional := facts.Object{Path: "opt/nvidia/nvshmem_bootstrap_mpi.so", Needed: []string{"libmpi.so.40"}}
	s2 := facts.Object{Path: "usr/lib/openmpi/mca_pmix_s2.so"}
	ext := facts.Object{Path: "usr/lib/openmpi/mca_pmix_ext3x.so"}
	cray := cluster.Profile{MPI: "mpich", PMI: "cray"}

	checkRule(
		t, "network-mpi-family",
		ruleCase{"other", withObjects(open4, program), cray, []string{
			"warning: 1 file uses the image's Open MPI (/usr/lib/libmpi.so.40.30), which the cluster's MPI of MPICH's family cannot replace",
		}},
		ruleCase{"not there", withObjects(program), cray, []string{
			"warning: 1 file needs libmpi.so.40 of Open MPI, which is not in the image, and the cluster's MPI is of MPICH's family",
		}},
		ruleCase{"unused", withObjects(open4, optional), cray, nil},
		ruleCase{"same", withObjects(open4, program), cluster.Profile{MPI: "openmpi"}, nil},
		ruleCase{"unknown", withObjects(open4, program), cluster.Profile{}, nil},
	)
	checkRule(
		t, "network-mpi-launch",
		ruleCase{"5 without PMIx", withObjects(open5), cray, []string{"warning: /usr/lib/libmpi.so.40.40 is Open MPI 5, which needs PMIx, and srun speaks cray"}},
		ruleCase{"4 without PMI-2", withObjects(open4, ext), cluster.Profile{PMI: "pmi2"}, []string{
			"warning: /usr/lib/libmpi.so.40.30 is Open MPI without mca_pmix_s2.so, and srun speaks pmi2",
		}},
		ruleCase{"MPICH without PMIx", withObjects(mpich4), cluster.Profile{PMI: "pmix"}, []string{
			"warning: /usr/lib/libmpi.so.12.3 is of MPICH's family and built without PMIx, and srun speaks pmix",
		}},
		ruleCase{"5", withObjects(open5), cluster.Profile{PMI: "pmix"}, nil},
		ruleCase{"4", withObjects(open4, s2), cluster.Profile{PMI: "pmi2"}, nil},
		ruleCase{"4, unknown", withObjects(open4), cluster.Profile{PMI: "pmi2"}, nil},
		ruleCase{"MPICH", withObjects(pmixed), cluster.Profile{PMI: "pmix"}, nil},
		ruleCase{"MPICH and PMI-2", withObjects(mpich4), cluster.Profile{PMI: "pmi2"}, nil},
	)
	checkRule(
		t, "network-copies",
		ruleCase{"two", withObjects(open4, open5), cluster.Profile{}, []string{"note: the image has 2 copies of libmpi.so.40"}},
		ruleCase{"one of each", withObjects(open4, mpich4), cluster.Profile{}, nil},
	)
}

// Every release of NCCL whose interface is known has some version, and later releases no lower ones.
func TestAPIsOf(t *testing.T) {
	last := 0
	for _, v := range strings.Fields("2.4.2 2.6.4 2.8.3 2.11.4 2.12.7 2.13.4 2.18.6 2.19.1 2.20.5 2.23.4 2.24.3 2.26.2 2.28.3 2.30.7") {
		lowest, highest, known := apisOf(v)
		if !known || lowest > highest || highest < last {
			t.Errorf("NCCL %s: %d to %d, %v", v, lowest, highest, known)
		}
		last = highest
	}
	for _, v := range []string{"", "2", "x.y", "2.31.2", "1.3.4", "3.1.0"} {
		if _, _, known := apisOf(v); known {
			t.Errorf("NCCL %q is known", v)
		}
	}
}
