# One part of gpu-test.sh, which sets the variables: parts.sh PART SECONDS. Rows go to $work/rows.tsv.
# shellcheck shell=bash disable=SC2154
set -euo pipefail

log=$out/log.txt tmp=$work/tmp
python=${PYTHON:-python3}

# row SUITE NAME FIGURE UNIT WANTED HELD: one line of the table. HELD is 1, 0, or - for a figure that nothing is wanted of.
row() {
	printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$@" >>"$work/rows.tsv"
	printf '  %-9s %-48s %14s %-8s %-22s %s\n' "$1" "$2" "$3" "$4" "$5" "$(case $6 in 1) echo ok ;; 0) echo FAIL ;; esac)"
}
holds() { awk "BEGIN { print ($1) ? 1 : 0 }"; }
percent() { awk -v a="$1" -v b="$2" 'BEGIN { if (a != "" && b > 0) printf "%.1f", 100 * a / b; else print "none" }'; }
calc() { awk "BEGIN { printf \"%.${2:-2}f\", $1 }"; }
within() { awk -v n="$1" -v least="$2" -v most="$3" 'BEGIN { print (n < least ? least : (n > most ? most : n)) }'; }
# value FILE KEY: of a program's key=value lines.
value() { sed -n "s/^$2=//p" "$1" | head -1; }
mib() { echo $(($(value "$1" "$2" | grep -x '[0-9]*' || echo 0) >> 20)); }
known() { [[ $(value "$work/answers/real" "$1" 2>/dev/null) =~ ^[0-9.]+$ ]]; }

# What a context takes: as asked, or by NVML's view of a process.
context() {
	if known context.process_mib; then
		calc "$(value "$work/answers/real" context.process_mib)" 0
		return
	fi
	"$bin/workloads/hold" --mib=0 --seconds=2 >"$tmp/context.txt" & local holder=$!
	"$bin/peak" "$holder" >"$tmp/context-peak.txt" || true
	wait "$holder"
	echo $((($(value "$tmp/context-peak.txt" peak_bytes) + (1 << 20) - 1) >> 20))
}

# slice NAME MIB CORES [force]: a container's directory. in_slice NAME PROGRAM…: a program inside it. The agent's loop knows
# a slice by its directory, so each has its own.
slice() {
	local dir pages='' agent=unmeasured
	[[ ! $with_loop ]] || agent=
	dir=$(mktemp -d "${slices:-$work/slices}/$1.XXXXXX")
	! known page.small_kib || pages=pages=$(value "$work/answers/real" page.page_kib):$(value "$work/answers/real" page.small_kib)
	"$bin/slice" make "$dir/vgpu" "$uuid" "$2" "$3" "$context_mib" ${4:+"$4"} ${agent:+"$agent"} ${pages:+"$pages"}
	ln -sfn "$dir/vgpu" "$work/named/$1"
}
# turns NAME…: these containers take turns on the GPU.
turns() {
	local name dirs=()
	for name in "$@"; do dirs+=("$(readlink "$work/named/$name")"); done
	"$bin/slice" turns "$(mktemp -d "$tmp/turns.XXXXXX")" "${dirs[@]}"
}
in_slice() {
	local dir
	dir=$(readlink "$work/named/$1")
	VGPU_LIMITS_PATH=$dir/limits VGPU_USAGE_PATH=$dir/usage VGPU_TURNS_PATH=$dir/turns LD_PRELOAD=$tmp/libvgpu-before-libasan.so "${@:2}"
}
in_front() {
	local dir
	dir=$(readlink "$work/named/$1")
	VGPU_LIMITS_PATH=$dir/limits VGPU_USAGE_PATH=$dir/usage LD_LIBRARY_PATH=$work/front/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "${@:2}"
}
limited() { in_slice "$1" "$bin/workloads/$2" "${@:3}"; }

# On the simulated GPU a rate by the clock on the wall is the processor's: it is shown and not judged. (test/limiter judges by
# the GPU's time.)
# share SUITE NAME PERCENT WANTED MORE LESS
share() {
	local held=-
	[[ $sim ]] || held=$(awk -v a="$3" -v w="$4" -v more="$5" -v less="$6" 'BEGIN { print (a != "none" && a >= w - less && a <= w + more) }')
	row "$1" "$2" "$3" % "$4 +$5 -$6" "$held"
}

ask() { # ask FILE: all questions, one process each: one that crashes or hangs leaves the others
	local question
	for question in context pages events streams export slices nvml inside; do
		timeout --kill-after=2 40 "$bin/probe" "$question" "$probing" >"$1.$question" 2>>"$log" || echo "probe $question: status $?" >>"$1.failed"
	done
	cat "$1".* | grep '=' >"$1" || true
}

part_questions() {
	ask "$work/answers/real"
	awk -F'\t' -v answers="$work/answers/real" '
		BEGIN { while ((getline line < answers) > 0) { at = index(line, "="); a[substr(line, 1, at - 1)] = substr(line, at + 1) } }
		!/^#/ { printf "  %-14s %s\n", $1 in a ? a[$1] : "no answer", $4 }' "$here/questions.tsv"
	[[ ! -s $work/answers/real.failed ]] || sed 's/^/  /' "$work/answers/real.failed"
}

# The profile of simctl that is nearest, by the GPU's name.
nearest() {
	case ${gpu_name^^} in
	*GB200*) echo GB200 ;;
	*B200* | *B300*) echo B200 ;;
	*H200*) echo H200 ;;
	*H100* | *H20*) echo H100 ;;
	*A100*40GB*) echo A100-40GB ;;
	*A100* | *A800*) echo A100-80GB ;;
	*"RTX PRO 6000"*) echo RTX-PRO-6000 ;;
	*L4* | *RTX*) echo L40S ;;
	*T4*) echo T4 ;;
	*) echo H100 ;;
	esac
}

# on_simulated NAME PROGRAM…: with a simulated GPU of its own.
on_simulated() { SIMGPU_STATE=$tmp/$1.state LD_LIBRARY_PATH=$SIMULATED env -u CUDA_VISIBLE_DEVICES "${@:2}"; }

# The answers of simulated GPUs, all questions at once: each has a GPU of its own.
ask_simulated() { # ask_simulated NAME init-options…
	local question pids=() file=$work/answers/$1
	for question in context pages events streams export slices nvml inside; do
		on_simulated "$1.$question" "$SIMULATED/simctl" init --force "${@:2}" >/dev/null
		on_simulated "$1.$question" timeout --kill-after=2 60 "$bin/probe" "$question" "$probing" >"$file.$question" 2>>"$log" & pids+=($!)
	done
	wait "${pids[@]}" || true
	cat "$file".* | grep '=' >"$file" || true
}

write_profile() {
	local key value section=driver
	on_simulated try "$SIMULATED/simctl" init --force --gpu "$(nearest)" >/dev/null
	{
		echo "# $gpu_name, measured $(date -u +%F). For simctl init --config; testdata/simdriver/README.md describes the keys."
		echo '[driver]'
		while IFS=$'\t' read -r key value; do
			if [[ $section == driver && $key != driver:* ]]; then
				section=gpu
				printf '[gpu]\nprofile = %s\n' "$(nearest)"
			fi
			key=${key#driver:}
			if on_simulated try "$SIMULATED/simctl" set "$([[ $section == driver ]] && echo driver || echo 0)" "$key=$value" >/dev/null 2>>"$log"; then
				echo "$key = $value"
			else
				echo "# $key = $value: the simulator does not know this key, or not this value of it"
			fi
		done < <(awk -F'\t' -v answers="$work/answers/real" -v name="$gpu_name" -v mib="$1" '
			BEGIN { while ((getline line < answers) > 0) { at = index(line, "="); a[substr(line, 1, at - 1)] = substr(line, at + 1) } }
			!/^#/ && $3 != "-" && $1 in a && a[$1] != "" { if ($3 ~ /^driver:/) first = first $3 "\t" a[$1] "\n"; else rest = rest $3 "\t" a[$1] "\n" }
			END {
				printf "%s", first
				print "name\t" name
				print "memory_mib\t" mib
				call = a["nvml.process_utilization"] == "info" ? "info" : "samples"
				late = a["nvml." call "_delay_ms"] - a["nvml." call "_period_ms"]
				if (a["nvml." call "_delay_ms"] != "") print "utilization_delay_ms\t" (late > 0 ? int(late) : 0)
				if (a["event.floor_us"] != "") print "event_ns\t" int(1000 * a["event.floor_us"])
				gap = a["event.launch_gap_us"] + 0
				if (a["event.launch_gap_us"] != "") print "gap_ns\t" (gap > 0 ? int(1000 * gap) : 0)
				start = a["event.added_5us"] - a["event.floor_us"]
				if (a["event.added_5us"] != "") print "start_ns\t" (start > 0 ? int(1000 * start) : 0)
				unlisted = a["context.gpu_mib"] - a["context.process_mib"]
				if (a["context.process_mib"] > 0) print "unlisted_mib\t" (unlisted > 0 ? unlisted : 0)
				lost = a["slice.lost_percent"] + 0
				if (a["slice.ours_us"] > 0) print "switch_us\t" (lost > 0 && lost < 100 ? int(a["slice.ours_us"] * lost / (100 - lost)) : 0)
				printf "%s", rest
			}' "$here/questions.tsv")
	} >"$work/profile.conf"
}

part_simulator() {
	# NVML's total has what is reserved, CUDA's does not.
	local nvml
	nvml=$(mib "$work/gpu.txt" nvml.0.total_bytes)
	ask_simulated as-it-is --gpu "$(nearest)"
	write_profile "$((nvml > 0 ? nvml : total_mib))"
	ask_simulated profile --config "$work/profile.conf"
	awk -F'\t' -v dir="$work/answers" -f "$here/compare.awk" "$here/questions.tsv" >"$work/comparison.tsv"
	awk -F'\t' '
		$6 == 1 { wrong++; printf "  %s\n      GPU: %s   simulator: %s   with the profile: %s\n", $2, $3, $4, $5 }
		$6 != "-" { compared++ }
		END { printf "  the simulator was wrong in %d of %d questions\n", wrong, compared }' "$work/comparison.tsv"
}

# Bounds of what can be allocated in chunks: as asked for, or as the GPU takes it.
least_of() { # least_of CHUNK_MIB ROOM_MIB
	if [[ $1 == 3 ]]; then
		calc "($2) * 3072 / $(known page.3m && value "$work/answers/real" page.3m || echo 4096)" 0
	else
		echo "$2"
	fi
}

part_memory() {
	local what kind chunk got peak shown child first want least hold=2
	((seconds > 20)) || hold=1
	slice memory "$limit" 0
	limited memory meminfo >"$tmp/memory.txt"
	shown=$(mib "$tmp/memory.txt" device.0.total_bytes)
	row memory 'cuDeviceTotalMem under a limit' "$shown" MiB "$limit" "$(holds "$shown == $limit")"
	shown=$(mib "$tmp/memory.txt" nvml.0.total_bytes)
	row memory 'NVML total under a limit' "$shown" MiB "$limit" "$(holds "$shown == $limit")"
	# 3 MiB: what a driver makes of a size that is not a multiple of its pages.
	for what in alloc:3 alloc:16 managed:16 pitch:16 async:16 vmm:16; do
		kind=${what%:*} chunk=${what#*:}
		slice memory "$limit" 0
		limited memory alloc --chunk-mib="$chunk" --kind="$kind" --hold="$hold" >"$tmp/alloc.txt" 2>>"$log" & child=$!
		"$bin/peak" "$child" >"$tmp/alloc-peak.txt" || true
		wait "$child" || true
		got=$(mib "$tmp/alloc.txt" allocated_bytes) peak=$(mib "$tmp/alloc-peak.txt" peak_bytes)
		least=$(least_of "$chunk" $((limit - context_mib - 64)))
		row memory "$kind of $chunk MiB: allocated until refused" "$got" MiB "$least to $((limit - context_mib))" \
			"$(holds "$got <= $limit - $context_mib && $got >= $least")"
		row memory "$kind of $chunk MiB: peak by NVML, over the limit" "$((peak > limit ? peak - limit : 0))" MiB "<= $((limit / 100 + 1))" "$(holds "$peak <= $limit * 1.01 + 1")"
	done
	slice memory "$limit" 0
	limited memory hold --mib=$((limit / 2)) --seconds=60 >"$tmp/first.txt" 2>>"$log" & first=$!
	for _ in $(seq 100); do [[ -z $(value "$tmp/first.txt" ready) ]] || break; sleep 0.1; done
	limited memory alloc --chunk-mib=16 >"$tmp/second.txt" 2>>"$log" || true
	got=$(mib "$tmp/second.txt" allocated_bytes) want=$((limit - limit / 2 - 2 * context_mib))
	row memory 'second process: allocated until refused' "$got" MiB "$((want - 32)) to $want" "$(holds "$got <= $want && $got >= $want - 32")"
	kill "$first" 2>/dev/null || true
	wait "$first" || true
}

# Mode library: nothing is preloaded, the front is found where the driver's library would be.
make_front() {
	local soname built file
	rm -rf "$work/front" && mkdir -p "$work"/front/{lib,driver}
	ln -s "$bin/lib/libvgpu.so" "$work/front/libvgpu.so"
	for soname in cuda:libcuda.so.1 nvml:libnvidia-ml.so.1; do
		built=${soname%:*} soname=${soname#*:}
		cp "$bin/fronts/lib/libvgpu-$built.so" "$work/front/lib/$soname"
		file=$("$bin/probe" driver | sed -n "s/^$built=//p")
		ln -s "$(readlink -f "$file")" "$work/front/driver/$built"
	done
}

part_front() {
	local shown lookup got
	make_front
	slice front "$limit" 0
	in_front front "$bin/workloads/meminfo" >"$tmp/front.txt" 2>>"$log"
	shown=$(mib "$tmp/front.txt" device.0.total_bytes)
	row front 'cuDeviceTotalMem under a limit' "$shown" MiB "$limit" "$(holds "$shown == $limit")"
	shown=$(mib "$tmp/front.txt" nvml.0.total_bytes)
	row front 'NVML total under a limit' "$shown" MiB "$limit" "$(holds "$shown == $limit")"
	for lookup in dlsym getproc getproc_v2; do
		in_front front "$bin/workloads/alloc" --chunk-mib=16 --lookup="$lookup" >"$tmp/front-alloc.txt" 2>>"$log" || true
		got=$(mib "$tmp/front-alloc.txt" allocated_bytes)
		row front "$lookup: allocated until refused" "$got" MiB "$((limit - context_mib - 64)) to $((limit - context_mib))" \
			"$(holds "$got <= $limit - $context_mib && $got >= $limit - $context_mib - 64")"
	done
}

part_crash() {
	local child peak killed got charged
	slice crash "$limit" 0
	limited crash churn --workers=8 --seconds="$(within "$((seconds / 2))" 2 10)" --kill-every-ms=50 --max-kib=262144 >"$tmp/churn.txt" 2>>"$log" & child=$!
	"$bin/peak" "$child" >"$tmp/churn-peak.txt" || true
	wait "$child" || true
	peak=$(mib "$tmp/churn-peak.txt" peak_bytes) killed=$(value "$tmp/churn.txt" killed)
	row crash 'workers killed' "$killed" '' '> 0' "$(holds "${killed:-0} > 0")"
	row crash 'peak by NVML, over the limit' "$((peak > limit ? peak - limit : 0))" MiB "<= $((limit / 100 + 1))" "$(holds "$peak <= $limit * 1.01 + 1")"
	limited crash alloc --chunk-mib=16 >"$tmp/after.txt" 2>>"$log" || true
	got=$(mib "$tmp/after.txt" allocated_bytes)
	row crash 'a new process can allocate' "$got" MiB ">= $((limit - context_mib - 64))" "$(holds "$got >= $limit - $context_mib - 64")"
	"$bin/slice" used "$work/named/crash" >"$tmp/used.txt"
	charged=$(value "$tmp/used.txt" used_bytes)
	row crash 'charged when all have ended' "$charged" bytes 0 "$(holds "$charged == 0")"
}

part_overhead() {
	local i call how bare
	slice unlimited "$limit" 0
	slice forced "$limit" 90 force
	for i in 1 2 3; do
		"$bin/calls" >"$tmp/calls.bare.$i"
		in_slice unlimited "$bin/calls" >"$tmp/calls.memory.$i"
		in_slice forced "$bin/calls" >"$tmp/calls.cores.$i"
	done
	middle() { cat "$tmp/calls.$1".? | awk -v key="$2" '$1 == key { print $2 }' | sort -n | sed -n 2p; }
	for call in launch alloc+free meminfo; do
		bare=$(middle bare "$call")
		row overhead "$call: bare" "$bare" ns '' -
		for how in memory cores; do
			row overhead "$call: added, $how limited" "$(calc "$(middle $how "$call") - $bare" 1)" ns '' -
		done
	done
}

# together NAME…: runs the array "command" in these slices side by side; the output of each is in $tmp/together.N.
together() {
	local i=0 name pids=()
	for name in "$@"; do
		in_slice "$name" "${command[@]}" >"$tmp/together.$i" 2>>"$log" & pids+=($!)
		i=$((i + 1))
	done
	wait "${pids[@]}"
}

# The work of programs of "shape" that run side by side, in percent of the GPU's time: paces NAME…, in slices, "-": in none.
paces() {
	local i=0 name pids=() begin
	begin=$(calc "$("$bin/work" --clock) + ${starts:-1}")
	for name in "$@"; do
		# shellcheck disable=SC2086
		"$([[ $name == - ]] && echo bare || echo in_slice)" "$name" "$bin/work" $shape --iterations="$iterations" --begin="$begin" --seconds="$each" \
			--settle="$([[ $name == - ]] && echo 0.3 || echo 1)" \
			>"$tmp/pace.$i" 2>>"$log" & pids+=($!)
		i=$((i + 1))
	done
	wait "${pids[@]}" || true
	for ((i = 0; i < $#; i++)); do value "$tmp/pace.$i" work_percent; done
}
bare() { "${@:2}"; }

# shares CORES…: the work of slices with these shares, which take turns.
shares() {
	local i names=()
	for ((i = 1; i <= $#; i++)); do
		slice "share$i" "$limit" "${!i}"
		names+=("share$i")
	done
	turns "${names[@]}"
	paces "${names[@]}"
}

# Error and loss of shares. What a container should have is its share of what a program has by itself. A row that there is
# no time for is left out.
part_share() {
	local each iterations shape set i most sum held got all solo both begun=$SECONDS left=0
	local -A single=() beside=()
	local shapes=('--us=500 --in-flight=64' '--us=500 --in-flight=1' '--us=5 --in-flight=64' '--us=50000 --in-flight=2' '--us=100,10000 --in-flight=8'
		'--us=500 --in-flight=64 --streams=8' '--us=5 --in-flight=1' '--us=5 --in-flight=64 --streams=16' '--us=500 --in-flight=16 --blocks=4000')
	local sets=('30 70' '10 90' '10 20 70' '50 50')
	each=$(within "$(calc "$seconds / 60" 1)" 1.5 5)
	[[ ! $quick ]] || each=0.5 shapes=("${shapes[@]:0:2}") sets=("${sets[@]:0:1}")
	iterations=$("$bin/work" --calibrate | sed -n 's/^iterations=//p')
	row share 'iterations of a kernel of 1 us' "$iterations" '' '' -
	shape=${shapes[0]}
	slice ceiling "$limit" 30 force
	share share "$shape: 30, forced, without turn files" "$(paces ceiling)" 30 3 3
	for set in "${sets[@]}"; do
		for shape in "${shapes[@]}"; do
			if ((!${#quick} && SECONDS - begun > seconds - 8)); then
				left=$((left + 1))
				continue
			fi
			[[ ${single[$shape]:-} ]] || single[$shape]=$(paces -)
			[[ ${beside[$shape]:-} ]] || beside[$shape]=$(paces - - | awk '{ n += $1 } END { print n }')
			solo=${single[$shape]} both=${beside[$shape]}
			read -r -a all <<<"$set"
			mapfile -t got < <(shares "${all[@]}")
			for ((i = 0; i < ${#all[@]}; i++)); do
				share share "$shape: ${all[i]} of ${set// //}" "$(percent "${got[i]:-}" "$solo")" "${all[i]}" 3 3
			done
			sum=$(printf '%s\n' "${got[@]}" | awk '{ n += $1 } END { print n }')
			most=$(awk -v a="$solo" -v b="$both" 'BEGIN { print (a > b ? a : b) }')
			held=-
			[[ $sim ]] || held=$(holds "$sum >= 0.97 * $most")
			row share "$shape: all of ${set// //} (single $solo, two without shares $both)" "$(percent "$sum" "$most")" % '>= 97' "$held"
		done
	done
	((left == 0)) || row share 'rows left out, for want of time' "$left" '' '' -
}

# A library: where ldconfig, CUDA's usual directories, Python's packages or GPU_TEST_LIBRARIES have it.
find_library() {
	local dir
	if [[ $sim ]]; then
		[[ ! -e $bin/standin/$1 ]] || echo "$bin/standin/$1"
		return
	fi
	for dir in ${GPU_TEST_LIBRARIES:-} ${LD_LIBRARY_PATH//:/ }; do [[ ! -e $dir/$1 ]] || { echo "$dir/$1" && return; }; done
	dir=$(ldconfig -p | awk -v name="$1" '$1 == name && /x86-64|AArch64/ { print $NF; exit }')
	[[ ! $dir ]] || { echo "$dir" && return; }
	find -L /usr/local/cuda*/lib64 /usr/local/cuda*/targets "${site_packages[@]}" -name "$1" 2>/dev/null | head -1 || true
}

part_runtime() {
	local version cudart blas nccl each bare key i names command site_packages=() tried=
	mapfile -t site_packages < <("$python" -c 'import site, sys; print("\n".join(p + "/nvidia" for p in site.getsitepackages() + [site.getusersitepackages()]))' 2>/dev/null || true)
	each=$(within "$(calc "$seconds / 12" 1)" 1 6)
	for version in 11.0 12 13; do
		cudart=$(find_library "libcudart.so.$version")
		[[ $cudart ]] || continue
		tried=1 version=${version%.0}
		blas=$(find_library "libcublas.so.$version") nccl=$(find_library libnccl.so.2)
		command=("$bin/runtime" "$cudart" "${blas:--}" "${nccl:--}" "$each")
		"${command[@]}" 0 >"$tmp/runtime.bare" 2>>"$log" || true
		row runtime "CUDA $version: runs" "$(value "$tmp/runtime.bare" version)$(value "$tmp/runtime.bare" failed)" '' '' "$(holds "$(grep -c '^done' "$tmp/runtime.bare" || true)")"
		slice runtime "$limit" 0
		in_slice runtime "${command[@]}" "$limit" >"$tmp/runtime.limited" 2>>"$log" || true
		row runtime "CUDA $version: runs with a limit" "$(value "$tmp/runtime.limited" failed)" '' '' "$(holds "$(grep -c '^done' "$tmp/runtime.limited" || true)")"
		row runtime "CUDA $version: allocated until refused" "$(value "$tmp/runtime.limited" filled_mib)" MiB "$((limit - context_mib - 128)) to $((limit - context_mib))" \
			"$(holds "0$(value "$tmp/runtime.limited" filled_mib) <= $limit - $context_mib && 0$(value "$tmp/runtime.limited" filled_mib) >= $limit - $context_mib - 128")"
		row runtime "CUDA $version: freed by cudaFreeAsync" "$(value "$tmp/runtime.limited" freed_async_mib)" MiB "$((2 * limit))" "$(holds "0$(value "$tmp/runtime.limited" freed_async_mib) == 2 * $limit")"
		for key in cublas_mib nccl_mib; do
			[[ -z $(value "$tmp/runtime.bare" $key) ]] || row runtime "CUDA $version: ${key%_mib} takes" "$(value "$tmp/runtime.bare" $key)" MiB '' -
		done
		bare=$(value "$tmp/runtime.bare" sgemm_per_second)
		[[ $bare ]] || continue
		row runtime "CUDA $version: cuBLAS" "$bare" /s '' -
		row runtime "CUDA $version: cuBLAS with a memory limit" "$(percent "$(value "$tmp/runtime.limited" sgemm_per_second)" "$bare")" % '' -
		command=("$bin/runtime" "$cudart" "$blas" - "$(calc "2 * $each" 1)" 0) names=(runtime30 runtime70)
		slice runtime30 "$limit" 30 force
		slice runtime70 "$limit" 70 force
		turns "${names[@]}"
		together "${names[@]}" || true
		for i in 0 1; do
			share runtime "CUDA $version: cuBLAS, ${names[i]#runtime} of 30/70" "$(percent "$(value "$tmp/together.$i" sgemm_per_second)" "$bare")" "${names[i]#runtime}" 5 10
		done
	done
	[[ $tried ]] || echo '  no libcudart is here: left out (GPU_TEST_LIBRARIES names directories)'
}

has_python() { [[ $sim ]] || "$python" -c "import sys, torch${1:+, $1}; sys.exit(not torch.cuda.is_available())" 2>>"$log"; }

torch_row() { # torch_row NAME TEST FRONT: the row of one of torch_test.py's tests
	local held=0
	slice torch "$limit" 0
	! "$3" torch "$python" "$here/torch_test.py" "$2" "$limit" >"$tmp/torch.txt" 2>>"$log" || held=1
	row torch "$1" "$(value "$tmp/torch.txt" figure)" "$(value "$tmp/torch.txt" unit)" "$(value "$tmp/torch.txt" wanted)" "$held"
}

part_torch() {
	local test each solo i names=(train30 train70) command
	has_python || { echo "  $python has no PyTorch that can use the GPU: left out"; return; }
	[[ -e $work/front ]] || make_front
	each=$(within "$((seconds / 7))" 1 10)
	for test in limit expandable graphs; do torch_row "$test" "$test" in_slice; done
	torch_row 'limit, in front' limit in_front
	command=("$python" "$here/torch_test.py" train "$each")
	"${command[@]}" >"$tmp/torch.solo" 2>>"$log"
	solo=$(value "$tmp/torch.solo" figure)
	row torch 'training: no limit' "$solo" steps/s '' -
	slice train "$limit" 0
	in_slice train "${command[@]}" >"$tmp/torch.limited" 2>>"$log"
	row torch 'training with a memory limit' "$(percent "$(value "$tmp/torch.limited" figure)" "$solo")" % '' -
	command[3]=$((2 * each))
	slice train30 "$limit" 30 force
	slice train70 "$limit" 70 force
	turns "${names[@]}"
	together "${names[@]}"
	for i in 0 1; do
		share torch "training, ${names[i]#train} of 30/70" "$(percent "$(value "$tmp/together.$i" figure)" "$solo")" "${names[i]#train}" 5 10
	done
}

# A compiler can take minutes: a part of its own, so that what it lacks is no other one's.
part_compile() {
	has_python || { echo "  $python has no PyTorch that can use the GPU: left out"; return; }
	torch_row compile compile in_slice
}

# Other programs and tools: each must end with the same status with a limit as without.
part_clients() {
	local name tried=0
	slice clients "$limit" 0
	client() { # client NAME PROGRAM…: where it runs at all
		name=$1 && shift
		if ! timeout 60 "$@" >"$tmp/client.bare" 2>&1; then
			echo "  $name does not run here: left out"
			sed 's/^/bare: /' "$tmp/client.bare" | tail -5 >>"$log"
			return
		fi
		tried=$((tried + 1))
		local held=1
		in_slice clients timeout 60 "$@" >"$tmp/client.limited" 2>&1 || held=0
		((held)) || { echo "== $name with a limit:" && tail -20 "$tmp/client.limited"; } >>"$log"
		row clients "$name: runs with a limit" '' '' '' "$held"
	}
	client nvidia-smi nvidia-smi
	client 'nvidia-smi -q' nvidia-smi -q
	if command -v nvcc >/dev/null; then
		nvcc -o "$tmp/kernel" "$here/client.cu" 2>>"$log" && client 'nvcc' "$tmp/kernel"
		nvcc -Xcompiler -fsanitize=address -o "$tmp/kernel-asan" "$here/client.cu" 2>>"$log" &&
			client 'nvcc, AddressSanitizer' env ASAN_OPTIONS=protect_shadow_gap=0:detect_leaks=0 "$tmp/kernel-asan"
		for tool in 'compute-sanitizer' 'cuda-gdb -batch -ex run' 'ncu -c 2'; do
			# shellcheck disable=SC2086
			! command -v ${tool%% *} >/dev/null || client "${tool%% *}" $tool "$tmp/kernel"
		done
	fi
	for name in jax cupy numba triton; do
		! "$python" -c "import $name" 2>/dev/null || client "$name" "$python" "$here/clients.py" "$name" "$limit"
	done
	((tried)) || echo '  no program is here: left out'
}

part_vllm() {
	local each solo i names=(vllm40 vllm60) command
	has_python vllm || { echo "  $python has no vLLM: left out"; return; }
	each=$(within "$((seconds / 6))" 1 15)
	command=("$python" "$here/vllm_test.py" "$each" "$tmp/model")
	slice vllm "$limit" 0
	in_slice vllm "${command[@]}" >"$tmp/vllm.limited" 2>>"$log" || true
	row vllm 'with a memory limit' "$(value "$tmp/vllm.limited" figure)" tokens/s '> 0' "$(holds "0$(value "$tmp/vllm.limited" figure) > 0")"
	"${command[@]}" >"$tmp/vllm.solo" 2>>"$log" || true
	solo=$(value "$tmp/vllm.solo" figure)
	row vllm 'no limit' "$solo" tokens/s '' -
	[[ $solo ]] || return
	slice vllm40 "$limit" 40 force
	slice vllm60 "$limit" 60 force
	turns "${names[@]}"
	together "${names[@]}" || true
	for i in 0 1; do
		share vllm "${names[i]#vllm} of 40/60" "$(percent "$(value "$tmp/together.$i" figure)" "$solo")" "${names[i]#vllm}" 5 10
	done
}

ln -sfn "$bin/lib/libvgpu.so" "$tmp/libvgpu-before-libasan.so" # as in a container
part=$1 seconds=$2
probing=$([[ $quick ]] && echo 0.5 || echo 2) # seconds of a measurement
case $part in
questions | simulator) ;;
*)
	limit=$((total_mib / 4 < 8192 ? total_mib / 4 : 8192))
	context_mib=$(context)
	;;
esac
"part_$part"
