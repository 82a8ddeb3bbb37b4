#!/usr/bin/env bash
# Runs the limiter on a real GPU, without containers, without Go, without a network: it needs bash, gcc, make and NVIDIA's
# driver; PyTorch is used where python3 has it. Prints one table and writes results.json.
#
#   test/gpu/gpu-test.sh [--out DIR] [--seconds N] [--sim]
#
# --sim runs it on the simulated driver, as a test of this script. Nothing of the machine is changed: what is
# built and written goes to DIR (build/gpu). The library is preloaded only into the programs here.
#
# Exit status: 0 all checks held; 1 one did not; 2 the call is wrong; 3 there is no GPU, or something can't be built.
set -euo pipefail
cd "$(dirname "$0")/../.."

out=build/gpu seconds=5 sim=
while (($#)); do
	case $1 in
	--out) out=${2:?--out wants a directory} && shift ;;
	--seconds) seconds=${2:?--seconds wants a number} && shift ;;
	--sim) sim=1 ;;
	*) sed -n '2,11s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
	esac
	shift
done
mkdir -p "$out"
out=$(cd "$out" && pwd)
rows=$out/rows.tsv
: >"$rows"
failed=0

die() { echo "gpu-test: $*" >&2; exit 3; }
heading() { printf '\n== %s\n' "$*"; }
# row SUITE NAME FIGURE UNIT WANTED HELD: one line of the table. HELD is 1, 0, or - for a figure that nothing is wanted of.
row() {
	printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$@" >>"$rows"
	printf '  %-9s %-44s %14s %-8s %-22s %s\n' "$1" "$2" "$3" "$4" "$5" "$(case $6 in 1) echo ok ;; 0) echo FAIL ;; *) echo ;; esac)"
	[[ $6 != 0 ]] || failed=1
}
holds() { awk "BEGIN { print ($1) ? 1 : 0 }"; }
calc() { awk "BEGIN { printf \"%.${2:-2}f\", $1 }"; }
# value FILE KEY: of a program's key=value lines.
value() { sed -n "s/^$2=//p" "$1" | head -1; }

heading 'build'
make -s -C limiter/src OUT="$out" >"$out/build.log" 2>&1 || { cat "$out/build.log"; die 'the limiter does not build'; }
programs=(alloc hold launch meminfo churn)
make -s -C testdata/workloads OUT="$out" "${programs[@]/#/$out/workloads/}" >>"$out/build.log" 2>&1 || { tail "$out/build.log"; die 'the workloads do not build'; }
cflags=(-std=c11 -D_GNU_SOURCE -O2)
gcc "${cflags[@]}" -o "$out/slice" test/gpu/slice.c limiter/src/crc32.c
gcc "${cflags[@]}" -o "$out/peak" test/gpu/peak.c -ldl
gcc "${cflags[@]}" -o "$out/calls" test/gpu/calls.c -ldl
if [[ $sim ]]; then
	make -s -C testdata/simdriver OUT="$out" >>"$out/build.log" 2>&1 || die 'the simulated driver does not build'
	export LD_LIBRARY_PATH=$out/sim SIMGPU_STATE=$out/sim.state
	"$out/sim/simctl" init --force --gpu H200 >/dev/null
fi
library=$out/lib/libvgpu.so
run() { "$out/workloads/$1" "${@:2}"; }

heading 'gpu'
run meminfo >"$out/gpu.txt" 2>&1 || { cat "$out/gpu.txt"; die 'no GPU can be used: nvidia-smi shows why'; }
uuid=$(value "$out/gpu.txt" device.0.uuid) name=$(value "$out/gpu.txt" device.0.name)
total_mib=$(($(value "$out/gpu.txt" device.0.total_bytes) >> 20))
driver=$(sed -n 's/^NVRM version: .*Module *\([0-9.]*\).*/\1/p' /proc/driver/nvidia/version 2>/dev/null || true)
[[ -z $sim ]] || driver=simulated
echo "  $name, $total_mib MiB, driver ${driver:-unknown}, $uuid"

# What a context takes: free memory before and after, by NVML's view of this process.
run hold --mib=0 --seconds=3 >"$out/context.txt" & holder=$!
"$out/peak" "$holder" >"$out/context-peak.txt" || true
wait "$holder"
context_mib=$((($(value "$out/context-peak.txt" peak_bytes) + (1 << 20) - 1) >> 20))
row GPU 'a context takes' "$context_mib" MiB '' -

# slice NAME MIB CORES [force]: a container's directory. in_slice NAME PROGRAM...: a program inside it.
slice() { rm -rf "$out/slices/$1" && mkdir -p "$out/slices" && "$out/slice" make "$out/slices/$1" "$uuid" "$2" "$3" "$context_mib" ${4:+"$4"}; }
in_slice() {
	VGPU_LIMITS_PATH=$out/slices/$1/limits VGPU_USAGE_PATH=$out/slices/$1/usage LD_PRELOAD=$library "${@:2}"
}
limited() { in_slice "$1" "$out/workloads/$2" "${@:3}"; }
charged() { "$out/slice" used "$out/slices/$1" >"$out/used.txt" && value "$out/used.txt" used_bytes; }

heading 'memory'
limit=$((total_mib / 4 < 8192 ? total_mib / 4 : 8192))
slice memory "$limit" 0
limited memory meminfo >"$out/memory.txt"
shown=$(($(value "$out/memory.txt" device.0.total_bytes) >> 20))
row memory 'cuDeviceTotalMem under a limit' "$shown" MiB "$limit" "$(holds "$shown == $limit")"
shown=$(($(value "$out/memory.txt" nvml.0.total_bytes) >> 20))
row memory 'NVML total under a limit' "$shown" MiB "$limit" "$(holds "$shown == $limit")"
# 3 MiB: what a driver makes of a size that is not a multiple of its pages is not charged, and shows as residue later.
for what in alloc:16 alloc:3 managed:16 pitch:16 async:16 vmm:16; do
	kind=${what%:*} chunk=${what#*:}
	slice memory "$limit" 0
	limited memory alloc --chunk-mib="$chunk" --kind="$kind" --hold=2 >"$out/alloc.txt" 2>"$out/alloc.err" & child=$!
	"$out/peak" "$child" >"$out/alloc-peak.txt" || true
	wait "$child" || true
	got=$(($(value "$out/alloc.txt" allocated_bytes || echo 0) >> 20)) peak=$(($(value "$out/alloc-peak.txt" peak_bytes) >> 20))
	row memory "$kind of $chunk MiB: allocated until refused" "$got" MiB "$((limit - context_mib - 64)) to $((limit - context_mib))" \
		"$(holds "$got <= $limit - $context_mib && $got >= $limit - $context_mib - 64")"
	row memory "$kind of $chunk MiB: peak by NVML, over the limit" "$((peak > limit ? peak - limit : 0))" MiB "<= $((limit / 100 + 1))" "$(holds "$peak <= $limit * 1.01 + 1")"
done
slice memory "$limit" 0
limited memory hold --mib=$((limit / 2)) --seconds=8 >"$out/first.txt" & first=$!
for _ in $(seq 100); do [[ -z $(value "$out/first.txt" ready) ]] || break; sleep 0.1; done
limited memory alloc --chunk-mib=16 >"$out/second.txt" 2>/dev/null || true
got=$(($(value "$out/second.txt" allocated_bytes) >> 20)) want=$((limit - limit / 2 - 2 * context_mib))
row memory 'second process: allocated until refused' "$got" MiB "$((want - 32)) to $want" "$(holds "$got <= $want && $got >= $want - 32")"
kill "$first" 2>/dev/null || true
wait "$first" || true

heading 'in front'
# Mode library: nothing is preloaded, the front is found where the driver's library would be.
front=$out/front
rm -rf "$front" && mkdir -p "$front/driver"
make -s -C limiter/front OUT="$front" DIR="$front" >>"$out/build.log" 2>&1 || die 'the fronts do not build'
ln -s "$library" "$front/libvgpu.so"
for pair in 'cuda libcuda.so.1' 'nvml libnvidia-ml.so.1'; do
	read -r built soname <<<"$pair"
	mv "$front/lib/libvgpu-$built.so" "$front/lib/$soname"
	file=$out/sim/$soname
	[[ $sim ]] || file=$(ldconfig -p | awk -v name="$soname" '$1 == name && /x86-64|AArch64/ { print $NF; exit }')
	[[ -e $file ]] || die "the driver's $soname is not found by ldconfig -p"
	ln -s "$(readlink -f "$file")" "$front/driver/$built"
done
in_front() {
	VGPU_LIMITS_PATH=$out/slices/$1/limits VGPU_USAGE_PATH=$out/slices/$1/usage LD_LIBRARY_PATH=$front/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "${@:2}"
}
slice front "$limit" 0
in_front front "$out/workloads/meminfo" >"$out/front.txt"
shown=$(($(value "$out/front.txt" device.0.total_bytes) >> 20))
row front 'cuDeviceTotalMem under a limit' "$shown" MiB "$limit" "$(holds "$shown == $limit")"
shown=$(($(value "$out/front.txt" nvml.0.total_bytes) >> 20))
row front 'NVML total under a limit' "$shown" MiB "$limit" "$(holds "$shown == $limit")"
for lookup in dlsym getproc getproc_v2; do
	in_front front "$out/workloads/alloc" --chunk-mib=16 --lookup="$lookup" >"$out/front-alloc.txt" 2>/dev/null || true
	got=$(($(value "$out/front-alloc.txt" allocated_bytes || echo 0) >> 20))
	row front "$lookup: allocated until refused" "$got" MiB "$((limit - context_mib - 64)) to $((limit - context_mib))" \
		"$(holds "$got <= $limit - $context_mib && $got >= $limit - $context_mib - 64")"
done

heading 'crash'
slice crash "$limit" 0
limited crash churn --workers=8 --seconds="$seconds" --kill-every-ms=50 --max-kib=262144 >"$out/churn.txt" 2>"$out/churn.err" & child=$!
"$out/peak" "$child" >"$out/churn-peak.txt" || true
wait "$child" || true
peak=$(($(value "$out/churn-peak.txt" peak_bytes) >> 20))
row crash 'workers killed' "$(value "$out/churn.txt" killed)" '' '> 0' "$(holds "$(value "$out/churn.txt" killed) > 0")"
row crash 'peak by NVML, over the limit' "$((peak > limit ? peak - limit : 0))" MiB "<= $((limit / 100 + 1))" "$(holds "$peak <= $limit * 1.01 + 1")"
limited crash alloc --chunk-mib=16 >"$out/after.txt" 2>/dev/null || true
got=$(($(value "$out/after.txt" allocated_bytes) >> 20))
row crash 'a new process can allocate' "$got" MiB ">= $((limit - context_mib - 32))" "$(holds "$got >= $limit - $context_mib - 64")"
row crash 'charged when all have ended' "$(charged crash)" bytes 0 "$(holds "$(charged crash) == 0")"

heading 'overhead'
slice unlimited "$limit" 0
slice forced "$limit" 90 force
for i in 1 2 3; do
	"$out/calls" >"$out/calls.bare.$i"
	in_slice unlimited "$out/calls" >"$out/calls.memory.$i"
	in_slice forced "$out/calls" >"$out/calls.cores.$i"
done
median() { cat "$out/calls.$1".? | awk -v key="$2" '$1 == key { print $2 }' | sort -n | sed -n 2p; }
for call in launch alloc+free meminfo; do
	bare=$(median bare "$call")
	row overhead "$call: bare" "$bare" ns '' -
	for how in memory cores; do
		added=$(calc "$(median $how "$call") - $bare" 1)
		row overhead "$call: added, $how limited" "$added" ns '' -
	done
done

heading 'compute time'
# rate CORES...: kernels a second of one program in a slice of its own, or of several side by side.
rate() {
	local i=0 pids=()
	for cores in "$@"; do
		slice "share$i" "$limit" "$cores" force
		limited "share$i" launch --seconds="$seconds" --duration-us="$duration" --in-flight="$flight" >"$out/rate.$i" & pids+=($!)
		i=$((i + 1))
	done
	wait "${pids[@]}"
	for ((i = 0; i < $#; i++)); do value "$out/rate.$i" rate_per_second; done
}
# On the simulated driver a rate by the clock on the wall is the processor's, which the
# programs wait for: it is shown and not judged. (test/limiter judges by the GPU's time.)
share() {
	local held=-
	[[ $sim ]] || held=$(holds "$2 >= $3 - $5 && $2 <= $3 + $4")
	row share "$1" "$2" % "$3 +- $4" "$held"
}
for shape in '500 1' '500 64' '50 64' '20000 1'; do
	read -r duration flight <<<"$shape"
	solo=$(rate 0)
	row share "$duration us kernels, $flight in flight: no neighbour" "$solo" /s '' -
	for cap in 10 30 50 70 90; do
		achieved=$(calc "100 * $(rate $cap) / $solo" 1)
		share "$duration us, $flight in flight: cap $cap" "$achieved" "$cap" 3 3
	done
	for pair in '30 70' '10 90' '50 50'; do
		read -r -a caps <<<"$pair"
		mapfile -t rates < <(rate "${caps[@]}")
		for i in 0 1; do
			achieved=$(calc "100 * ${rates[$i]} / $solo" 1)
			share "$duration us, $flight in flight: ${caps[$i]} of ${pair/ //}" "$achieved" "${caps[$i]}" 3 5
		done
	done
done

heading 'PyTorch'
if [[ -z $sim ]] && python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
	for test in limit expandable graphs compile; do
		slice torch "$limit" 0
		if in_slice torch python3 test/gpu/torch_test.py "$test" "$limit" >"$out/torch.$test.txt" 2>"$out/torch.$test.err"; then held=1; else held=0; fi
		row torch "$test" "$(value "$out/torch.$test.txt" figure)" "$(value "$out/torch.$test.txt" unit)" "$(value "$out/torch.$test.txt" wanted)" "$held"
	done
	for test in limit compile; do
		slice torch "$limit" 0
		if in_front torch python3 test/gpu/torch_test.py "$test" "$limit" >"$out/torch.$test.txt" 2>"$out/torch.$test.err"; then held=1; else held=0; fi
		row torch "$test, in front" "$(value "$out/torch.$test.txt" figure)" "$(value "$out/torch.$test.txt" unit)" "$(value "$out/torch.$test.txt" wanted)" "$held"
	done
	python3 test/gpu/torch_test.py train "$seconds" >"$out/torch.solo.txt"
	solo=$(value "$out/torch.solo.txt" figure)
	for cores in 30 70; do
		slice "train$cores" "$limit" "$cores" force
		in_slice "train$cores" python3 test/gpu/torch_test.py train "$seconds" >"$out/torch.train$cores.txt" 2>/dev/null &
	done
	wait
	for cores in 30 70; do
		achieved=$(calc "100 * $(value "$out/torch.train$cores.txt" figure) / $solo" 1)
		row torch "training, $cores of 30/70" "$achieved" % "$cores +- 5" "$(holds "$achieved >= $cores - 10 && $achieved <= $cores + 5")"
	done
else
	echo '  python3 has no PyTorch that can use the GPU: left out'
fi

awk -F'\t' -v name="$name" -v uuid="$uuid" -v driver="${driver:-unknown}" -v mib="$total_mib" -v date="$(date -u +%F)" '
	function text(s) { gsub(/\\/, "\\\\", s); gsub(/"/, "\\\"", s); return "\"" s "\"" }
	BEGIN { printf "{\"GPU\":%s,\"uuid\":%s,\"driver\":%s,\"memoryMiB\":%s,\"date\":%s,\"rows\":[", text(name), text(uuid), text(driver), mib, text(date) }
	{ printf "%s\n {\"suite\":%s,\"name\":%s,\"figure\":%s,\"unit\":%s,\"wanted\":%s,\"held\":%s}", (NR > 1 ? "," : ""), text($1), text($2), text($3), text($4), text($5), ($6 == "1" ? "true" : $6 == "0" ? "false" : "null") }
	END { print "\n]}" }' "$rows" >"$out/results.json"
echo
if ((failed)); then
	echo "some checks did not hold; results in $out/results.json"
	exit 1
fi
echo "all checks held; results in $out/results.json"
