# Functions that install what a script needs, when it is missing, by the ordinary clients. Sourced, from the top of the
# repository.

PATH=$PWD/.tools/bin:$PATH
export PATH

# ask_for PACKAGE...: says what only an administrator can install, and gives up.
ask_for() {
	echo "missing Debian packages: $*" >&2
	echo "hint: ask an administrator to run: apt-get install --no-install-recommends $*" >&2
	exit 1
}

# again COMMAND...: runs a command that asks a server, and again when it fails: mirrors and networks have bad moments.
again() {
	local pause
	for pause in 5 15 45; do
		"$@" && return
		echo "this failed, and is tried again in $pause s: $*" >&2
		sleep "$pause"
	done
	"$@"
}

# there COMMAND: whether a command is there for root, who has more directories on PATH.
there() {
	PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin command -v "$1" > /dev/null 2>&1
}

# need_debian COMMAND PACKAGE...: installs the packages unless COMMAND is there.
need_debian() {
	there "$1" && return
	shift
	sudo=
	if [ "$(id -u)" -ne 0 ]; then
		there sudo || ask_for "$@"
		sudo=sudo
	fi
	there apt-get || ask_for "$@"
	again install_debian "$@" || ask_for "$@"
}

# install_debian PACKAGE...: asks for the lists, too, as a mirror may have moved on; another apt-get on this machine is waited for.
install_debian() {
	$sudo apt-get update -qq \
		&& $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -o DPkg::Lock::Timeout=600 -y -qq --no-install-recommends "$@" > /dev/null
}

# The release of uv that the tests are written against.
UV_VERSION=0.13.8

# uv_can_come: whether uv is there, or can be installed without an administrator.
uv_can_come() {
	command -v uv > /dev/null 2>&1 || python3 -c 'import ensurepip' > /dev/null 2>&1
}

# need_uv: installs uv from the Python package index into .tools.
need_uv() {
	command -v uv > /dev/null 2>&1 && return
	uv_can_come || need_debian python3-venv-is-missing python3 python3-venv
	python3 -m venv .tools/python
	again .tools/python/bin/pip install --quiet --disable-pip-version-check "uv==$UV_VERSION"
	mkdir -p .tools/bin
	ln -sf ../python/bin/uv .tools/bin/uv
}

# need_npm PACKAGE VERSION: installs a package of npm into .tools. Those that are asked for are JavaScript alone.
need_npm() {
	if ! have_npm "$1" "$2"; then
		need_debian npm npm
		mkdir -p ".tools/$1@$2"
		again timeout 300 npm install --loglevel=error --no-audit --no-fund --ignore-scripts --prefix ".tools/$1@$2" "$1@$2"
	fi
	ln -sfn "$1@$2" ".tools/$1"
}

# have_npm PACKAGE VERSION: whether it is there.
have_npm() {
	[ -d ".tools/$1@$2/node_modules/$1" ]
}

# The release of playwright-core, which drives the browser of the tests: the last that runs with the Node.js 18 of Debian 12.
PLAYWRIGHT_VERSION=1.60.0

# The release of gitlab-ci-local, which runs pipelines of GitLab and knows GitLab's schema: the last whose metadata says Node.js 18.
GITLAB_CI_LOCAL_VERSION=4.63.0
