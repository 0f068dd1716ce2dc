# Functions that install what a script needs, when it is missing, by the ordinary clients. Sourced, from the top of the
# repository.

PATH=$PWD/.tools/bin:$PATH
export PATH

# need_debian COMMAND PACKAGE...: installs the packages unless COMMAND is there.
need_debian() {
	command -v "$1" > /dev/null 2>&1 && return
	shift
	sudo=
	if [ "$(id -u)" -ne 0 ]; then
		command -v sudo > /dev/null 2>&1 || {
			echo "missing: $*. Ask an administrator to run: apt-get install $*" >&2
			exit 1
		}
		sudo=sudo
	fi
	if [ -z "${apt_updated:-}" ]; then
		$sudo apt-get update -qq
		apt_updated=yes
	fi
	DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "$@" > /dev/null
}

# The release of uv that the tests are written against.
UV_VERSION=0.13.8

# need_uv: installs uv from the Python package index into .tools.
need_uv() {
	command -v uv > /dev/null 2>&1 && return
	python3 -c 'import ensurepip' > /dev/null 2>&1 || need_debian python3-venv-is-missing python3 python3-venv
	python3 -m venv .tools/python
	.tools/python/bin/pip install --quiet --disable-pip-version-check "uv==$UV_VERSION"
	mkdir -p .tools/bin
	ln -sf ../python/bin/uv .tools/bin/uv
}

# The release of playwright-core, which drives the browser of the tests.
PLAYWRIGHT_VERSION=1.65.1

# need_playwright: installs playwright-core from npm into .tools. It is JavaScript alone and brings no browser.
need_playwright() {
	local dir=playwright-core@$PLAYWRIGHT_VERSION
	if [ ! -d ".tools/$dir/node_modules/playwright-core" ]; then
		need_debian npm npm
		mkdir -p ".tools/$dir"
		npm install --silent --no-audit --no-fund --ignore-scripts --prefix ".tools/$dir" "playwright-core@$PLAYWRIGHT_VERSION"
	fi
	ln -sfn "$dir" .tools/playwright-core
}
