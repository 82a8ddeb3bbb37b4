#!/usr/bin/env bash
# Asks a real GPU what the simulated one has to assume, and runs the limiter on it. Needs bash, gcc, make and NVIDIA's driver,
# or what `make gpu-bundle` built and the driver only. docs/GPU-TEST.md describes it.
#
#   test/gpu/gpu-test.sh [--minutes N] [--out DIR] [--parts "NAME …"] [--quick] [--sim[=GPU]]
#
# --minutes   the time for all parts (8). A part that does not finish in its share is ended and named
# --out       where the results go (build/gpu-results): GPU-DATE.md, .json and .conf, and log.txt
# --parts     only these of: questions simulator memory front crash overhead share runtime torch vllm clients compile
# --quick     the shortest runs of everything, with the same time limits: a test of this script
# --sim       on the simulated GPU, with stand-ins for PyTorch, vLLM and NVIDIA's libraries. GPU is simctl's --gpu (H200)
#
# Nothing of the machine is changed: what is built goes to build/gpu. The limiter is loaded only into the programs here.
#
# Exit status: 0 all checks held; 1 one did not, or a part did not finish; 2 the call is wrong; 3 there is no GPU, or
# something can't be built.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

all=(questions simulator memory front crash overhead share runtime torch vllm clients compile)
minutes=8 quick='' sim='' out='' parts=("${all[@]}")
usage() { sed -n '2,17s/^# \{0,1\}//p' "$0" >&2; exit 2; }
while (($#)); do
	case $1 in
	--minutes) minutes=${2:?--minutes wants a number} && shift ;;
	--out) out=${2:?--out wants a directory} && shift ;;
	--parts) read -r -a parts <<<"${2:?--parts wants names}" && shift ;;
	--quick) quick=1 ;;
	--sim) sim=H200 ;;
	--sim=*) sim=${1#--sim=} ;;
	*) usage ;;
	esac
	shift
done
for part in "${parts[@]}"; do [[ " ${all[*]} " == *" $part "* ]] || usage; done
seconds=$(awk -v m="$minutes" 'BEGIN { if (m + 0 <= 0) exit 1; print int(m * 60) }') || usage

base=$here
[[ -e $here/bin/probe ]] || base=$here/../../build
mkdir -p "$base/gpu" "${out:=$base/gpu-results}"
out=$(cd "$out" && pwd) work=$(cd "$base/gpu" && pwd)
export out work here sim quick
export bin=$work/bin
[[ ! -e $here/bin/probe ]] || bin=$here/bin
rm -rf "$work"/{slices,named,answers,front,tmp} && mkdir -p "$work"/{slices,named,answers,tmp}
: >"$work/rows.tsv" && : >"$work/parts.tsv" && : >"$work/comparison.tsv" && : >"$out/log.txt"

die() { echo "gpu-test: $*" >&2; exit 3; }
heading() { printf '\n== %s\n' "$*"; }

if [[ $bin == "$work/bin" ]]; then
	heading 'build'
	"$here/build.sh" "$work" >"$work/build.log" 2>&1 || { tail -20 "$work/build.log"; die 'something does not build'; }
	# Without Go the agent's loop is the one of a bundle that was built elsewhere.
	bundled=$base/gpu-bundle/bin/loop
	[[ -x $bin/loop || ! -x $bundled ]] || cp "$bundled" "$bin/loop"
fi
export SIMULATED=$bin/sim
if [[ $sim ]]; then
	export LD_LIBRARY_PATH=$SIMULATED SIMGPU_STATE=$work/tmp/gpu.state PYTHONPATH=$here/standin PYTHONDONTWRITEBYTECODE=1
	"$SIMULATED/simctl" init --force --gpu "$sim" >/dev/null || die 'no such simulated GPU'
fi

export CUDA_DEVICE_ORDER=PCI_BUS_ID # as NVML counts
heading 'gpu'
timeout 60 "$bin/workloads/meminfo" >"$work/gpu.txt" 2>>"$out/log.txt" || { cat "$work/gpu.txt"; die 'no GPU can be used: nvidia-smi shows why'; }
value() { sed -n "s/^$2=//p" "$1" | head -1; }
export uuid gpu_name total_mib
uuid=$(value "$work/gpu.txt" device.0.uuid) gpu_name=$(value "$work/gpu.txt" device.0.name)
total_mib=$(($(value "$work/gpu.txt" device.0.total_bytes) >> 20))
echo "  $gpu_name, $total_mib MiB, $uuid"

loop=
if [[ -x $bin/loop ]]; then
	"$bin/loop" "$work/slices" >"$work/loop.txt" 2>>"$out/log.txt" & loop=$!
	trap 'kill "$loop" 2>/dev/null || true' EXIT
	for _ in $(seq 300); do [[ ! -s $work/loop.txt ]] || break; kill -0 "$loop" 2>/dev/null || break; sleep 0.1; done
fi
export with_loop=
if [[ $loop ]] && kill -0 "$loop" 2>/dev/null; then
	with_loop=1
	echo "  the agent's loop runs beside the suites"
else
	echo "  the agent's loop is not here (make gpu-bundle builds it on a machine with Go): processes measure what only the driver counts"
fi

# Seconds that a part wants when there are 8 minutes. Each gets its part of the time that is left, and half as much again
# before it is ended.
declare -A wants=([questions]=50 [simulator]=40 [memory]=45 [front]=10 [crash]=8 [overhead]=20 [share]=130 [runtime]=45 [torch]=70 [vllm]=60 [clients]=45 [compile]=60)
unfinished=()
for ((p = 0; p < ${#parts[@]}; p++)); do
	part=${parts[p]} sum=0 left=$((seconds - SECONDS))
	for later in "${parts[@]:p}"; do sum=$((sum + wants[$later])); done
	planned=$((left > 0 ? left * 9 * wants[$part] / (10 * sum) : 0))
	most=$((planned * 3 / 2 < left ? planned * 3 / 2 : left))
	heading "$part (${planned} s)"
	begun=$SECONDS result=0
	if ((most < 2)); then
		result=124
	else
		timeout --kill-after=5 "$most" bash "$here/parts.sh" "$part" "$([[ $quick ]] && echo 0 || echo "$planned")" 2>>"$out/log.txt" || result=$?
	fi
	state=finished
	if ((result == 124 || result == 137)); then
		state='not finished' && unfinished+=("$part")
		echo "  $part: did not finish in $most s"
	elif ((result)); then
		state="ended with status $result" && unfinished+=("$part")
		echo "  $part: ended with status $result: $out/log.txt"
	fi
	printf '%s\t%s\t%s\t%s\n' "$part" "$planned" "$((SECONDS - begun))" "$state" >>"$work/parts.tsv"
done

stem=$(tr -cs '[:alnum:]' - <<<"${gpu_name#NVIDIA }" | tr '[:upper:]' '[:lower:]' | sed 's/-*$//')
stem=$out/$(date -u +%F)-$stem
driver=$(value "$work/answers/real" context.driver 2>/dev/null || true)
for form in md json; do
	awk -F'\t' -v form="$form" -v gpu="$gpu_name" -v driver="${driver:-unknown}${sim:+, simulated}" -v mib="$total_mib" -v date="$(date -u +%F)" -v loop="${with_loop:-0}" \
		-f "$here/report.awk" "$work/parts.tsv" "$work/rows.tsv" "$work/comparison.tsv" >"$stem.$form"
done
[[ ! -e $work/profile.conf ]] || cp "$work/profile.conf" "$stem.conf"

failed=$(awk -F'\t' '$6 == "0"' "$work/rows.tsv" | wc -l)
echo
echo "results: $stem.md, .json, .conf (the profile that the simulator loads), $out/log.txt; $SECONDS s"
((${#unfinished[@]} == 0)) || echo "parts that did not finish: ${unfinished[*]}"
if ((failed)); then
	echo "$failed checks did not hold"
elif ((${#unfinished[@]} == 0)); then
	echo 'all checks held'
fi
((failed == 0 && ${#unfinished[@]} == 0))
