#!/usr/bin/env bash
# Makes the environment of one tool that writes checkpoints, in FOLDER/TOOL, unless it is there:
#   tests/checkpoints/environment.sh FOLDER TOOL
# The releases are those that wrote tests/checkpoints/data. 1 to 3 GB each.
set -euo pipefail
case $2 in
llmcompressor) packages=(llmcompressor==0.14.0.1) ;;
gptqmodel) packages=(gptqmodel==7.7.0) ;;
auto_round) packages=(auto-round==0.16.1) ;;
transformers) packages=(transformers==5.24.0 accelerate bitsandbytes==0.50.2 torchao==0.18.0) ;;
modelopt) packages=(nvidia-modelopt==0.47.0 transformers==5.24.0 accelerate requests) ;;
speculators) packages=(speculators==0.9.0) ;;
*) echo "no tool $2" >&2 && exit 2 ;;
esac
python=$1/$2/bin/python
[ -f "$1/$2/.made" ] && exit 0
"${PYTHON:-python3}" -m venv "$1/$2"
"$python" -m pip --disable-pip-version-check install -q "${packages[@]}"
touch "$1/$2/.made"
