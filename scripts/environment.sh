# Sourced by the scripts of this folder: use_environment FILE [REQUIREMENT ...] puts what requirements/FILE pins, and the
# requirements, into the virtual environment $PRNN_VENV (.venv), unless it is there already, and puts the environment first
# on PATH.

unset PYTHONDONTWRITEBYTECODE # else each of the many processes that tests start compiles the sources of prnn

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
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    # Most modules are never imported; the others are compiled when they are.
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile -r "requirements/$1" "${@:2}"
    echo "$wanted" >"$stamp"
  fi
  export PATH=$PWD/$venv/bin:$PATH VIRTUAL_ENV=$PWD/$venv
  [[ $venv != /* ]] || export PATH=$venv/bin:$PATH VIRTUAL_ENV=$venv
}

# An environment with another torch, its version in $1.
use_torch() {
  PRNN_VENV=${PRNN_VENV:-.venv}-torch-$1
  use_environment torch.txt "torch==$1"
}
