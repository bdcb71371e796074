# Sourced by the scripts of this folder: use_environment FILE puts what requirements/FILE pins into the virtual
# environment $PRNN_VENV (.venv), unless it is there already, and puts the environment first on PATH.

unset PYTHONDONTWRITEBYTECODE # else each of the many processes that tests start compiles the sources of prnn

# $2: the version of torch, if requirements/FILE does not say it.
use_environment() {
  local venv=${PRNN_VENV:-.venv} python=${PYTHON:-python3} wanted stamp
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "prnn needs Python 3.11 or newer, and $python is $("$python" --version); set PYTHON to another" >&2
    return 1
  }
  wanted=$(cat requirements/*.txt | sha256sum; "$python" --version; echo "$@")
  stamp=$venv/installed-$1
  if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    echo "installing requirements/$1 into $venv"
    [ ! -e "$venv/incomplete" ] || rm -rf "$venv" # an installation failed, or was ended
    install_requirements "$venv" "$python" "$@" || {
      echo "requirements/$1 were not installed into $venv; $(df -Ph . | awk 'END { print $4 }') of disk space are free" >&2
      return 1
    }
    echo "$wanted" >"$stamp"
  fi
  export PATH=$PWD/$venv/bin:$PATH VIRTUAL_ENV=$PWD/$venv
  [[ $venv != /* ]] || export PATH=$venv/bin:$PATH VIRTUAL_ENV=$venv
}

install_requirements() {
  local venv=$1 python=$2 requirements=$3 torch=${4:-} index
  # Most modules are never imported; the others are compiled when they are.
  mkdir -p "$venv" && touch "$venv/incomplete" &&
    { [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"; } &&
    index=$("$venv/bin/python" scripts/install_torch.py --index) &&
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile --retries=10 $index \
      -r "requirements/$requirements" &&
    { [ -z "$torch" ] || "$venv/bin/python" scripts/install_torch.py "$torch"; } &&
    rm "$venv/incomplete"
}

# An environment with another torch, its version in $1.
use_torch() {
  PRNN_VENV=${PRNN_VENV:-.venv}-torch-$1
  use_environment torch.txt "$1"
}
