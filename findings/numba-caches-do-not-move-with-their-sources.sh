#!/usr/bin/env bash
# numba names the folders of a cache by the absolute path of the sources, though it stamps what is in them by their contents: a cache
# that was filled for a checkout serves no equal checkout in another folder, also where NUMBA_CACHE_DIR is the same for both and every
# file of the copy has the same bytes and times. What is compiled ahead in one folder of an image or of CI's cache is compiled again in
# another. Seen with numba 0.68.1 and Python 3.11.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"  # whose modules Python would import first
python3 -m venv venv
venv/bin/python -m pip install -q numba==0.68.1
export NUMBA_CACHE_DIR="$folder/cache"
mkdir first
cat >first/loop.py <<'PY'
from numba import njit


@njit("int64(int64)", cache=True)
def double(x):
    return 2 * x


print(sum(double.stats.cache_hits.values()))
PY
cp -a first second
compiled=$(venv/bin/python first/loop.py)
again=$(venv/bin/python first/loop.py)
copied=$(venv/bin/python second/loop.py)
echo "hits of the cache: at first $compiled, again $again, in a copy of the folder $copied; folders of the cache: $(ls cache | wc -l)"
[ "$compiled $again $copied $(ls cache | wc -l)" = "0 1 0 2" ]
