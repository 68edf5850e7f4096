#!/usr/bin/env bash
# The first hour on a machine with a CUDA device, without network or virtual environment: see docs/operate/gpu.md.
#
#   bash bench/gpu/hour.sh wheels          # before, where there is a network: download what the machine lacks to .wheels
#   bash bench/gpu/hour.sh [A B C D E]     # there: each section takes ten minutes at most; default: all
#   bash bench/gpu/hour.sh --dry-run [A B C D E]
#
# PYTHON, OUT, SITE, WHEELS and LIMIT (seconds of a section) may be set. Results are OUT/SECTION.jsonl and .md.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
PYTHON=${PYTHON:-python3} OUT=${OUT:-$root/gpu_hour} WHEELS=${WHEELS:-$root/.wheels} LIMIT=${LIMIT:-570}
SITE=${SITE:-${TMPDIR:-/tmp}/ramiform-site}
NEEDED="msgspec safetensors tqdm typer click rich markdown-it-py mdurl pygments shellingham typing-extensions annotated-doc"

if [ "${1:-}" = wheels ]; then
    # With Python 3.12 on x86-64, as machines with CUDA images have; set PYTHON_VERSION for another.
    "$PYTHON" -m pip download --quiet --no-deps --only-binary=:all: --python-version "${PYTHON_VERSION:-3.12}" \
        --implementation cp --platform manylinux2014_x86_64 --platform manylinux_2_28_x86_64 \
        -c "$root/constraints.txt" -d "$WHEELS" $NEEDED || exit 1
    du -sh "$WHEELS"
    exit
fi

dry=
if [ "${1:-}" = --dry-run ]; then
    dry=--dry-run
    shift
    "$PYTHON" -c 'import sys, torch; sys.exit(torch.cuda.is_available())' && export TRITON_INTERPRET=1
fi

mkdir -p "$SITE" "$OUT"
if ! "$PYTHON" -c 'import msgspec, safetensors, tqdm, typer' 2>/dev/null; then
    "$PYTHON" -m pip install --quiet --no-index --no-deps --no-compile --upgrade --target "$SITE" "$WHEELS"/*.whl || exit 1
fi
ln -sfn "$root" "$SITE/ramiform"
export PYTHONPATH=$SITE${PYTHONPATH:+:$PYTHONPATH} TRITON_DEFAULT_FP_FUSION=1 PYTHONUNBUFFERED=1
export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$SITE/triton-cache}

failed=0
[ $# -gt 0 ] || set -- A B C D E
if [ -n "$dry" ]; then  # in one process
    exec "$PYTHON" -P "$root/bench/gpu/hour.py" "$@" --out "$OUT" --dry-run
fi
for section in "$@"; do
    run=("$PYTHON" -P "$root/bench/gpu/hour.py" "$section" --out "$OUT")
    if [ "$section" = E ] && command -v ncu >/dev/null; then
        run=(ncu --set basic --profile-from-start off --kernel-name "regex:_attend|_of_block|_choose" --launch-count 100
            --csv --log-file "$OUT/E.csv" "${run[@]}")
    fi
    timeout "$LIMIT" "${run[@]}" || { failed=1; echo "section $section did not end well" >&2; }
    if [ "$section" = A ] && command -v compute-sanitizer >/dev/null; then
        timeout "$LIMIT" compute-sanitizer --tool memcheck "$PYTHON" -P "$root/bench/gpu/hour.py" A --dry-run \
            --only correctness --out "$OUT/sanitized" || { failed=1; echo "compute-sanitizer found faults" >&2; }
    fi
done
exit $failed
