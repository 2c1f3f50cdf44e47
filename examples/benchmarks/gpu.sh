#!/usr/bin/env bash
# What needs a GPU, in one command that ends by itself within 8 minutes.
#
#     examples/benchmarks/gpu.sh --data-root DIR [--out FOLDER]           # a GPU, and mnist-static in DIR
#     examples/benchmarks/gpu.sh --data-root DIR [--out FOLDER] PART...   # these parts alone, in this order
#     examples/benchmarks/gpu.sh --small [--out FOLDER] [PART...]         # every part on a CPU, in a few minutes
#
# Parts, the most important first: machine, tests, step, training, scaling, estimators, resumed. The whole
# budget of the paper on MNIST, 320,000 steps, is run if it is named: mnist, then evaluated.
#
# Each part has a time limit of its own, and leaves PART.json, one JSON object per line (the tests tests.txt),
# and PART.log in FOLDER (gpu-results). parts.json has a line for each part: its exit status (124: cut off),
# seconds, and the last line of what it printed, if that is no JSON. The runs that were trained lie in
# FOLDER/runs.
set -uo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
tests="$here/../../tests"

small=0 data_root="" out=gpu-results
all=(machine tests step training scaling estimators resumed) extra=(mnist evaluated) chosen=()
while [ $# -gt 0 ]; do
    case "$1" in
        --small) small=1 ;;
        --data-root | --out)
            [ $# -gt 1 ] || { echo "gpu.sh: error: $1: expected a folder" >&2 && exit 2; }
            if [ "$1" = --out ]; then out="$2"; else data_root="$2"; fi
            shift
            ;;
        *)
            case " ${all[*]} ${extra[*]} " in
                *" $1 "*) chosen+=("$1") ;;
                *)
                    echo "gpu.sh: error: expected --small, --data-root DIR, --out FOLDER or parts of" \
                        "${all[*]} ${extra[*]}, got '$1'" >&2 && exit 2
                    ;;
            esac
            ;;
    esac
    shift
done
if [ "$small" = 0 ] && [ -z "$data_root" ]; then
    echo "gpu.sh: error: --data-root: expected the folder of mnist-static, or --small" >&2 && exit 2
fi
if [ -e "$out" ]; then
    echo "gpu.sh: error: --out: $out is there already" >&2 && exit 2
fi
mkdir -p "$out/runs"
out="$(cd "$out" && pwd)"

TORCHINDUCTOR_CACHE_DIR="$(mktemp -d)" # a part that is cut off may leave half a file there
export TORCHINDUCTOR_CACHE_DIR
trap 'rm -rf "$TORCHINDUCTOR_CACHE_DIR"' EXIT

# 8 minutes, or 20 for the whole budget, less what it takes to end a part
deadline=$((SECONDS + 480 - 30))
case " ${chosen[*]} " in *" mnist "*) deadline=$((SECONDS + 1200 - 30)) ;; esac

# part NAME SECONDS COMMAND: run it, and note how it ended
part() {
    local name="$1" limit="$2" began=$SECONDS left=$((deadline - SECONDS)) status
    shift 2
    [ "$small" = 1 ] && limit=600 left=600 # a CPU may be slow
    [ "$left" -lt "$limit" ] && limit="$left"
    if [ "$limit" -lt 1 ]; then
        status=124
        : > "$out/$name.json"
    else
        timeout --signal=TERM --kill-after=20 "$limit" "$@" > "$out/$name.json" 2> "$out/$name.log"
        status=$?
    fi
    NAME="$name" STATUS="$status" TOOK=$((SECONDS - began)) python - "$out/$name.json" <<'PYTHON' | tee -a "$out/parts.json"
import json, os, sys
lines = open(sys.argv[1], encoding="utf-8").read().splitlines()
said = lines[-1] if lines and not lines[-1].startswith("{") else ""  # of no JSON
print(json.dumps({"part": os.environ["NAME"], "status": int(os.environ["STATUS"]),
                  "seconds": int(os.environ["TOOK"]), "said": said}))
PYTHON
}

runs=(python "$here/gpu_runs.py")
if [ "$small" = 1 ]; then
    device=cpu
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
    budget=(--data smiley --factors 4,4,4,4 --factor-dim 4 --batch-size 64 --pretrain-iterations 100 --prior-iterations 20
        --joint-iterations 200)
    short=(--data smiley --factors 4,4,4,4 --hidden 16 --refine-iterations 20
        --pretrain-iterations 60 --prior-iterations 20 --joint-iterations 60 --eager true)
    step=(--net mlp --setting 1,4,4,8 --steps 2 --methods "vae,captured,SVI TraceConjugate (eager),-bfloat16")
    estimators=(--points 300 --pretrain 2 --draws 2 --steps 2 --seconds 0 --methods "SVI TraceConjugate,captured,-bfloat16")
    scaling=(--components 2,4 --factors 1,2 --steps 1)
else
    device=cuda
    budget=(--data mnist-static --data-root "$data_root" --factors 64 --factor-dim 64 --batch-size 64
        --pretrain-iterations 100000 --prior-iterations 20000 --joint-iterations 200000)
    short=(--data mnist-static --data-root "$data_root" --factors 32,32 --pretrain-iterations 1500
        --prior-iterations 500 --joint-iterations 1500)
    step=(--setting 1,64,512,64 --setting 5,64,64,64 --steps 100
        --methods "one graph,captured,TraceEnum (assignment in the guide),-compiled networks")
    estimators=(--data-root "$data_root" --net conv --seconds 10 --methods "SVI TraceConjugate,captured,-bfloat16")
    scaling=(--components 2,64,512,4096,65536)
fi
common=(--device "$device" --json)

run() {
    case "$1" in
        machine) part machine 30 "${runs[@]}" machine ;;
        tests)
            mapfile -t marked < <(grep -rl --include='*.py' 'mark\.gpu' "$tests" | sed 's|/conftest.py$||' | sort)
            part tests 180 python -m pytest -q -n 0 -p no:cacheprovider -m gpu "${marked[@]}"
            mv "$out/tests.json" "$out/tests.txt"
            ;;
        step) part step 100 python "$here/step.py" "${common[@]}" "${step[@]}" ;;
        training) part training 60 "${runs[@]}" measured train "${short[@]}" --device "$device" --out "$out/runs/short" ;;
        scaling) part scaling 60 python "$here/scaling.py" "${common[@]}" "${scaling[@]}" ;;
        estimators) part estimators 60 python "$here/estimators.py" "${common[@]}" "${estimators[@]}" ;;
        resumed) part resumed 120 "${runs[@]}" resumed "$out/runs" "${short[@]}" --device "$device" ;;
        mnist) part mnist 900 "${runs[@]}" measured train "${budget[@]}" --device "$device" --out "$out/runs/mnist" ;;
        evaluated) part evaluated 60 python -m pyro_fmvae evaluate "$out/runs/mnist" --device "$device" ;;
    esac
}

[ ${#chosen[@]} -gt 0 ] || chosen=("${all[@]}")
[ "$small" = 0 ] || [ "${chosen[*]}" != "${all[*]}" ] || chosen+=("${extra[@]}")
for name in "${chosen[@]}"; do
    run "$name"
done
echo "results in $out"
