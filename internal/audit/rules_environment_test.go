package audit

import (
	"testing"

	"sconce.dev/sconce/internal/facts"

	"sconce.dev/sconce/internal/cluster"
)

func TestEnvironmentRules(t *testing.T) {
	checkRule(
		t, "env-nvidia-devices",
		ruleCase{"both missing", imageWith().withGPU(), onEnroot, []string{
			"warning: the image has code for GPUs but does not set NVIDIA_VISIBLE_DEVICES: enroot will show it none",
			"warning: the image has code for GPUs but does not set NVIDIA_DRIVER_CAPABILITIES: the driver's libcuda.so.1 may stay away",
		}},
		ruleCase{"no compute", imageWith("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility").withGPU(), onEngine, []string{
			"warning: NVIDIA_DRIVER_CAPABILITIES=utility lacks compute",
		}},
		ruleCase{"none", imageWith("NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_DRIVER_CAPABILITIES=all").withGPU(), onPodman, []string{
			"note: NVIDIA_VISIBLE_DEVICES=void asks for no GPU",
		}},
		ruleCase{"set", imageWith("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility").withGPU(), onEnroot, nil},
		ruleCase{"no GPU code", imageWith(), onEnroot, nil},
		ruleCase{"Apptainer", imageWith().withGPU(), onApptainer, nil},
	)
	checkRule(
		t, "env-cuda-visible-devices",
		ruleCase{"one", imageWith("CUDA_VISIBLE_DEVICES=0"), cluster.Profile{}, []string{"warning: the image sets CUDA_VISIBLE_DEVICES=0"}},
		ruleCase{"none", imageWith("CUDA_VISIBLE_DEVICES=").withGPU(), onEnroot, []string{`error: CUDA_VISIBLE_DEVICES="" hides every GPU from CUDA`}},
		ruleCase{"unset", imageWith("PATH=/usr/bin"), onEnroot, nil},
	)
	checkRule(
		t, "env-not-set",
		ruleCase{"enroot", imageWith("a.b=1", "ENROOT_X=1", "HOME=/data"), onEnroot, []string{
			`note: neither Apptainer nor enroot will set "a.b": a name must be letters, digits and _`,
			"note: enroot will not set ENROOT_X: it keeps names that begin with ENROOT_ to itself",
		}},
		ruleCase{"Apptainer", imageWith("HOME=/data", "ENROOT_X=1"), onApptainer, []string{
			"note: Apptainer will not use the image's HOME: it sets that itself",
		}},
		ruleCase{"clean", imageWith("PATH=/usr/bin", "HOME=/root"), onApptainer, nil},
		ruleCase{"unknown", imageWith("HOME=/data"), cluster.Profile{}, nil},
	)
	checkRule(
		t, "env-multiline",
		ruleCase{"lost", imageWith("A=one\ntwo", "B=\"x\"", "C=${HOME}/x", "D=d"), onEnroot, []string{
			"warning: enroot will not set A, B, C as the image has it, for its line breaks, quotes or ${NAME}",
		}},
		ruleCase{"written by sconce", imageWith("A=one\ntwo").withFiles(map[string]string{"etc/rc": "# sconce: enroot starts"}), onEnroot, nil},
		ruleCase{"Apptainer", imageWith("A=one\ntwo"), onApptainer, nil},
	)
	checkRule(
		t, "env-not-evaluated",
		ruleCase{"command", imageWith("CMAKE_PREFIX_PATH=$(python -c 'print(1)')", "B=`date`"), cluster.Profile{}, []string{
			"warning: B has `date` in its value, which is not evaluated",
			"warning: CMAKE_PREFIX_PATH has $(…) in its value, which is not evaluated",
		}},
		ruleCase{"variable", imageWith("A=${HOME}/x", "LD_LIBRARY_PATH=/x:$LD_LIBRARY_PATH"), cluster.Profile{}, []string{
			"warning: A has ${HOME} in its value, which is not evaluated",
			"warning: LD_LIBRARY_PATH has $LD_LIBRARY_PATH in its value, which is not evaluated",
		}},
		ruleCase{"clean", imageWith("PS1=$(date) ${USER}", "PRICE=$5 or 10$", "LD_LIBRARY_PATH=${ORIGIN}/x:/y/$LIB", "RE=^a$", "X=$(", "JAVA_OPTS=${X}"), cluster.Profile{}, nil},
	)
	checkRule(
		t, "env-debug",
		ruleCase{"on", imageWith("CUDA_LAUNCH_BLOCKING=1", "NCCL_DEBUG=trace", "TORCH_DISTRIBUTED_DEBUG=DETAIL"), cluster.Profile{}, []string{
			"note: the image sets CUDA_LAUNCH_BLOCKING=1", "note: the image sets NCCL_DEBUG=trace", "note: the image sets TORCH_DISTRIBUTED_DEBUG=DETAIL",
		}},
		ruleCase{"off", imageWith("CUDA_LAUNCH_BLOCKING=0", "NCCL_DEBUG=INFO", "PYTHONDONTWRITEBYTECODE=1", "MALLOC_CHECK_=0"), cluster.Profile{}, nil},
	)
	checkRule(
		t, "env-build-flags",
		ruleCase{"left over", imageWith("BUILD_CAFFE2=0", "MAX_JOBS=256"), cluster.Profile{}, []string{
			"note: the image sets BUILD_CAFFE2=0, which the build of PyTorch no longer knows",
			"note: the image sets MAX_JOBS=256: as many compilers at once may need 1280 GB",
		}},
		ruleCase{"no number", imageWith("MAX_JOBS=$(nproc)"), cluster.Profile{}, []string{`note: the image sets MAX_JOBS="$(nproc)", which is no number of jobs`}},
		ruleCase{"clean", imageWith("MAX_JOBS=8"), cluster.Profile{}, nil},
	)
	checkRule(
		t, "env-secrets",
		ruleCase{"secrets", imageWith("HF_TOKEN=hf_abcdefghijkl", "PIP_INDEX_URL=https://me:secret@example.org/simple"), cluster.Profile{}, []string{
			"warning: HF_TOKEN is in the image's environment, 15 characters", "warning: PIP_INDEX_URL has a URL with a user's name and password",
		}},
		ruleCase{"clean", imageWith("GPG_KEY=E3FF2839C048B25C084DEBE9B26995E310250568", "API_KEY=", "TOKENIZERS_PARALLELISM=false",
			"A_TOKEN=/run/secrets/x", "URL=https://example.org:80/@x"), cluster.Profile{}, nil},
	)
	checkRule(
		t, "env-network-interface",
		ruleCase{"baked", imageWith("NCCL_SOCKET_IFNAME=eth0"), cluster.Profile{}, []string{"warning: the image sets NCCL_SOCKET_IFNAME=eth0"}},
		ruleCase{"left out", imageWith("NCCL_SOCKET_IFNAME=^lo,docker"), cluster.Profile{}, nil},
	)
	checkRule(
		t, "env-nccl-workaround",
		ruleCase{"InfiniBand", imageWith("NCCL_IB_DISABLE=1", "NCCL_P2P_DISABLE=1"), onInfiniBand, []string{
			"warning: the image sets NCCL_P2P_DISABLE=1",
			"warning: the image sets NCCL_IB_DISABLE=1: NCCL will use TCP although the nodes have InfiniBand",
		}},
		ruleCase{"Slingshot", imageWith("NCCL_IB_DISABLE=1", "NCCL_P2P_DISABLE=0"), onSlingshot, nil},
	)
}

func TestSearchPathRules(t *testing.T) {
	arm := imageWith("LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu")
	arm.Platform = "linux/arm64"
	checkRule(
		t, "env-search-path",
		ruleCase{"loose", imageWith("LD_LIBRARY_PATH=:/usr/lib:lib"), cluster.Profile{}, []string{
			"note: LD_LIBRARY_PATH has 2 elements without an absolute path",
		}},
		ruleCase{"missing", imageWith("PATH=/usr/bin:/opt/nothing/bin", "PYTHONPATH=/a:/b"), cluster.Profile{}, []string{
			"note: PATH names 1 directory that the image does not have", "note: PYTHONPATH names 2 directories that the image does not have",
		}},
		ruleCase{"no program", imageWith("PATH=/opt/nothing/bin"), cluster.Profile{}, []string{
			"warning: none of the directories of PATH exists in the image: no program is found by its name",
		}},
		ruleCase{"other processor", arm, cluster.Profile{}, []string{
			"warning: LD_LIBRARY_PATH names directories for another processor, x86_64-linux-gnu, in an image for linux/arm64",
		}},
		ruleCase{"usual", imageWith("PATH=/usr/local/sbin:/usr/bin:/sbin", "LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/lib"), cluster.Profile{}, nil},
	)
	pythons := imageWith("PYTHONPATH=/opt/extra")
	pythons.Root = mapRoot{"opt/extra/": ""}
	shadowed := *pythons
	shadowed.Pythons = []facts.Python{
		{Dir: "opt/extra", Distributions: []facts.Distribution{{Name: "numpy", Version: "1.0"}}},
		{Dir: "opt/venv/lib/python3.11/site-packages", Distributions: []facts.Distribution{{Name: "numpy", Version: "2.0"}, {Name: "torch"}}},
	}
	checkRule(
		t, "env-python-path",
		ruleCase{"set", pythons, cluster.Profile{}, []string{"note: PYTHONPATH=/opt/extra comes before the packages of every Python in the image"}},
		ruleCase{"shadows", &shadowed, cluster.Profile{}, []string{"warning: PYTHONPATH puts 1 package in front of the same in a virtual environment"}},
		ruleCase{"home of nothing", imageWith("PYTHONHOME=/nowhere"), cluster.Profile{}, []string{
			"error: PYTHONHOME=/nowhere has no Python library: no Python of the image starts",
		}},
		ruleCase{"home", imageWith("PYTHONHOME=/opt/venv"), cluster.Profile{}, []string{"warning: PYTHONHOME=/opt/venv is set for every Python of the image"}},
		ruleCase{"clean", imageWith("PYTHONPATH="), cluster.Profile{}, nil},
	)
	checkRule(
		t, "env-preload",
		ruleCase{"missing", imageWith("LD_PRELOAD=/opt/x.so:libjemalloc.so.2"), cluster.Profile{}, []string{
			"warning: LD_PRELOAD names /opt/x.so, libjemalloc.so.2, which the image does not have",
		}},
		ruleCase{"there", imageWith("LD_PRELOAD=/usr/lib/libc.so.6 libhost.so"), cluster.Profile{Injects: []string{"libhost.so"}}, nil},
	)
	user := imageWith()
	user.Pythons = []facts.Python{
		{Dir: "usr/lib/python3.11/site-packages", Version: "3.11", System: true, Distributions: make([]facts.Distribution, 9)},
		{Dir: "opt/venv/lib/python3.11/site-packages", Version: "3.11", Distributions: make([]facts.Distribution, 9)},
	}
	set := *user
	set.Config.Env = []string{"PYTHONNOUSERSITE=1"}
	checkRule(
		t, "env-user-site",
		ruleCase{"seen", user, onApptainer, []string{
			"note: ~/.local/lib/python3.11 of the user comes before the 9 packages of /usr/lib/python3.11/site-packages",
		}},
		ruleCase{"set", &set, onApptainer, nil},
		ruleCase{"enroot", user, onEnroot, nil},
	)
}
