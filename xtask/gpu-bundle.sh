#!/usr/bin/env bash
# Runs what needs a GPU, in half an hour: bash run.sh [PART...], all parts where none is named.
#
#   machine       what nvidia-smi, lscpu and the system say of this machine  30 s
#   start         times until a fresh process has its first shards           40 s
#   quick         the tests that need a GPU, with few cases                  100 s
#   chunks        nvCOMP beside threads of the host, by number and size      30 s
#   reads         arrays and crops into the memory of the GPU                50 s
#   stream        writers, levels and shards beside the host, and the ratios 240 s
#   benchmark     what the kernels, the bus and the engine reach             330 s
#   connections   shards with CUDA_DEVICE_MAX_CONNECTIONS of 8 and of 32     60 s
#   suites        the tests that need a GPU, with all cases                  240 s
#   memcheck, racecheck, synccheck, initcheck
#                 tests under one tool of compute-sanitizer                  120, 100, 60, 100 s
#   profile       what ncu says of scatter, gather and crc32c                80 s
#
# The parts run in this order, and take less than half an hour together also where each of them
# takes all its time.
#
# Writes two files, or three, into the folder OUT, or the working directory, over those of an earlier run:
# zarrs_cuda-gpu.json, anew before and after every part, so that whoever ends this script early
# loses one part alone; and zarrs_cuda-gpu.log, what all parts printed. Fails if a part failed.
#
# A part is "passed", "failed", "timeout", "incomplete" (a tool took all its time: no failure),
# "empty" (no test ran), "cannot start" (the loader refused the program), "absent" (nothing to run it
# with: a reason says so, and it is no failure), "skipped" (after a time-out the GPU did not answer a
# probe of five seconds), "running" or "waiting" (this script was ended before).
#
# Needs Linux on x86-64, bash, the usual commands (coreutils, sed, awk, grep; tar and gzip for arrays), an NVIDIA driver for
# CUDA 12.0 or newer, and the glibc that the file named glibc says: 2.34 where the bundle was built on
# Debian 12. nvCOMP needs a libstdc++.so.6 as well, of GCC 6 or newer, and xz or python3 to unpack it.
#
# ZARRS_CUDA_LIMIT_SUITES=240   seconds that a part may take; likewise for the others
# ZARRS_CUDA_GPU_STREAMS=1      streams of kernels of each lane in the suites, up to 3
# ZARRS_CUDA_SANITIZER          the whole path of compute-sanitizer; unless this is set it is looked for
# ZARRS_CUDA_SECTIONS           sections of the benchmark, of kernels, bus, pinned, staging, inputs, whole,
#                               compressed and sweep: all unless this is set
# ZARRS_CUDA_EXPORT             if this is set, the suites write arrays that the GPU compressed, which the
#                               interoperability tests read: the archive zarrs_cuda-gpu-arrays.tar.gz
# ZARRS_CUDA_NCU                the whole path of ncu; unless this is set it is looked for
# ZARRS_CUDA_LIBCUDA            the folder of libcuda.so.1, also if the loader knows another: unless this
#                               is set, what the loader knows, or else /usr/local/nvidia/lib64
set -uo pipefail
# Messages that can be recognised, and bytes for characters.
export LC_ALL=C

all=(machine start quick chunks reads stream benchmark connections suites
    memcheck racecheck synccheck initcheck profile)
declare -A limit=([machine]=30 [start]=40 [quick]=100 [chunks]=30 [reads]=50 [stream]=240 [benchmark]=330
    [connections]=60 [suites]=240 [memcheck]=120 [racecheck]=100 [synccheck]=60 [initcheck]=100
    [profile]=80)

for name in "$@"; do
    if [[ " ${all[*]} " != *" $name "* ]]; then
        printf 'there is no part "%s"; the parts are: %s\n' "$name" "${all[*]}" >&2
        exit 2
    fi
done
# Each once, in the order above.
parts=()
for name in "${all[@]}"; do
    if [ $# -eq 0 ] || [[ " $* " == *" $name "* ]]; then
        parts+=("$name")
    fi
    variable=ZARRS_CUDA_LIMIT_${name^^}
    limit[$name]=${!variable:-${limit[$name]}}
    if ! [[ ${limit[$name]} =~ ^[1-9][0-9]*$ ]]; then
        printf '%s is a number of seconds, not "%s"\n' "$variable" "${limit[$name]}" >&2
        exit 2
    fi
done

here=$(cd "$(dirname "$0")" && pwd) || exit 1
out=$(mkdir -p "${OUT:-.}" && cd "${OUT:-.}" && pwd) || exit 1
json=$out/zarrs_cuda-gpu.json
log=$out/zarrs_cuda-gpu.log
# The tests of the engine, and those of the library over it.
tests=$here/zarrs_cuda-engine-tests
library_tests=$here/zarrs_cuda-tests
bench=$here/zarrs_cuda-bench

child=
temporary=$(mktemp -d) || exit 1
clean() {
    if [ -n "$child" ]; then
        kill "$child" 2>/dev/null
    fi
    rm -rf "$temporary"
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
# What a program leaves where it runs goes with it.
cd "$temporary" || exit 1
: >"$log" || exit 1

# A string of JSON: ASCII alone, with the ends of lines and tabs.
quote() {
    printf '"%s"' "$(tr -d '\000-\010\013-\037\177' | tr '\200-\377' '?' |
        sed 's/\\/\\\\/g; s/"/\\"/g; s/\t/\\t/g' |
        awk '{ printf "%s%s", separator, $0; separator = "\\n" }')"
}

# What runs the programs of this bundle, and nothing else.
environment=(ZARRS_CUDA_REQUIRE_GPU=1 RUST_BACKTRACE=1)
if [ -d "$here/bold.zarr" ]; then
    environment+=("ZARRS_CUDA_BENCH_MRI=$here/bold.zarr")
fi

if [ -d "$here/foreign" ]; then
    environment+=("ZARRS_CUDA_FOREIGN_ARRAYS=$here/foreign")
fi

# Containers may have the driver's libraries where the loader does not look.
libcuda=${ZARRS_CUDA_LIBCUDA:-/usr/local/nvidia/lib64}
known=$(PATH=$PATH:/usr/sbin:/sbin ldconfig -p 2>/dev/null)
if [ -e "$libcuda/libcuda.so.1" ] &&
    { [ -n "${ZARRS_CUDA_LIBCUDA:-}" ] || [[ $known != *libcuda.so.1* ]]; }; then
    environment+=("LD_LIBRARY_PATH=$libcuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}")
fi

# The first line of what nvidia-smi says, or null four times.
gpu=(null null null null)
if lines=$(PATH=$PATH:/usr/local/nvidia/bin timeout 10 nvidia-smi \
    --query-gpu=name,driver_version,memory.total,compute_cap --format=csv,noheader 2>/dev/null) &&
    [ -n "$lines" ]; then
    IFS=, read -ra fields <<<"$lines"
    for i in "${!gpu[@]}"; do
        field=${fields[i]:-}
        gpu[i]=$(quote <<<"${field# }")
    done
fi
cpu=$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1 | quote)
commit=$(quote <"$here/commit")

# What is known of each part, as JSON.
declare -A record
for name in "${parts[@]}"; do
    record[$name]='"result": "waiting"'
done
# What parts measured, as JSON.
documents=(machine start start_again chunks reads stream benchmark connections_8 connections_32)
declare -A document
passed=false # until all parts are done
failed=0

save() {
    local name separator=
    {
        printf '{\n  "commit": %s,\n  "date": "%s",\n' "$commit" "$(date -u +%Y-%m-%dT%H:%M:%SZ)"
        printf '  "gpu": %s,\n  "driver": %s,\n  "memory": %s,\n' "${gpu[@]:0:3}"
        printf '  "compute_capability": %s,\n  "cpu": %s,\n' "${gpu[3]}" "$cpu"
        printf '  "passed": %s,\n  "parts": [' "$passed"
        for name in "${parts[@]}"; do
            printf '%s\n    { "part": "%s", %s }' "$separator" "$name" "${record[$name]}"
            separator=,
        done
        printf '\n  ]'
        for name in "${documents[@]}"; do
            printf ',\n  "%s": %s' "$name" "${document[$name]:-null}"
        done
        printf '\n}\n'
    } >"$json.new" && mv -f "$json.new" "$json"
}

# The part that runs: its name, and where it began.
begin() {
    part=$1 began=$SECONDS from=$(($(wc -c <"$log") + 1))
    printf '== %s\n' "$part" | tee -a "$log"
    record[$part]='"result": "running"'
    save
}

# Prints the seconds that the part has left, at least one.
left() {
    local seconds=$((limit[$part] - (SECONDS - began)))
    echo $((seconds > 1 ? seconds : 1))
}

# run SECONDS COMMAND...: sets `code`, and how that is called, `result`.
run() {
    local seconds=$1 start=$SECONDS first=$(($(wc -c <"$log") + 1))
    shift
    # Not in the foreground, so that a signal to this script is heard at once.
    timeout --kill-after=10 "$seconds" env "${environment[@]}" "$@" >>"$log" 2>&1 </dev/null &
    child=$!
    wait "$child"
    code=$?
    child=
    printed=$(tail -c "+$first" "$log" | tail -n 60 | tail -c 20000 | tr -d '\000')
    if [ "$code" -eq 124 ] || { [ "$code" -eq 137 ] && [ $((SECONDS - start)) -ge "$seconds" ]; }; then
        result=timeout
        timed_out=true
    elif [ "$code" -ne 0 ]; then
        result=failed
    # Tests that did not run have shown nothing.
    elif tail -c "+$first" "$log" | grep -q '^running 0 tests$'; then
        result=empty
    else
        result=passed
    fi
}

# The part has ended as `result` and `code` say.
end() {
    local more= summary
    if [ "$result" != passed ]; then
        if [ "$result" != incomplete ]; then
            failed=1
        fi
        more=", \"log\": $(quote <<<"$printed")"
        printf '%s\n' "$printed"
    fi
    summary=$(tail -c "+$from" "$log" | grep '^test result: ' | tail -n 2)
    if [ -n "$summary" ]; then
        more=", \"tests\": $(quote <<<"$summary")$more"
    fi
    record[$part]="\"result\": \"$result\", \"code\": $code, \"seconds\": $((SECONDS - began))$more"
    printf '%s: %s, %s s\n' "$part" "$result" "$((SECONDS - began))"
    save
}

# without NAME RESULT REASON: there is nothing to run.
without() {
    record[$1]="\"result\": \"$2\", \"reason\": $(quote <<<"$3")"
    printf '%s: %s, %s\n' "$1" "$2" "$3" | tee -a "$log"
    save
}

# Whether the loader takes a program; if not, that is how the part ends.
starts() {
    local seconds
    seconds=$(left)
    run $((seconds < 30 ? seconds : 30)) "$1" --list ::on_gpu::
    if [ "$code" -ne 0 ]; then
        result='cannot start'
        end
        return 1
    fi
}

# fact NAME COMMAND...: what the command prints is known of this machine.
fact() {
    local name=$1 text
    shift
    if text=$(timeout 10 env "PATH=$PATH:/usr/local/nvidia/bin:/usr/sbin:/sbin" "$@" 2>>"$log" |
        tr -d '\000') && [ -n "$text" ]; then
        facts+="${facts:+, }"$'\n'"    \"$name\": $(quote <<<"${text:0:60000}")"
    else
        absent+="${absent:+, }$(quote <<<"$name: nothing from $*")"
    fi
}

# files NAME PATTERN...: the files that exist, each line with its file before it.
files() {
    local name=$1 text
    shift
    # The status of grep is an error where one of the files is missing.
    text=$(grep -s '' "$@")
    if [ -n "$text" ]; then
        facts+="${facts:+, }"$'\n'"    \"$name\": $(quote <<<"${text:0:60000}")"
    else
        absent+="${absent:+, }$(quote <<<"$name: none of $*")"
    fi
}

machine() {
    local facts= absent= device links=() name
    begin machine
    fact 'nvidia-smi -q' nvidia-smi -q
    fact 'nvidia-smi topo' nvidia-smi topo -m
    fact 'lscpu' lscpu
    fact 'uname' uname -a
    fact 'disk' df -h "$temporary"
    files 'NUMA' /sys/devices/system/node/node*/{cpulist,distance}
    files 'huge pages' /sys/kernel/mm/transparent_hugepage/{enabled,defrag,shmem_enabled} \
        /sys/kernel/mm/hugepages/*/nr_hugepages
    for device in /sys/bus/pci/devices/*; do
        # NVIDIA's controllers of displays, of class 3.
        if [[ $(cat "$device/vendor" 2>/dev/null) == 0x10de ]] &&
            [[ $(cat "$device/class" 2>/dev/null) == 0x03* ]]; then
            for name in {current,max}_link_{speed,width} numa_node; do
                links+=("$device/$name")
            done
        fi
    done
    files 'PCIe' "${links[@]:-/sys/bus/pci/devices/NVIDIA}"
    # Under load and in a control group nothing is as fast.
    files 'load' /proc/loadavg
    files 'memory' /proc/meminfo
    files 'driver' /proc/driver/nvidia/version
    files 'control group' /sys/fs/cgroup/{cpu.max,memory.max,cpuset.cpus.effective} \
        /sys/fs/cgroup/{cpu/cpu.cfs_quota_us,memory/memory.limit_in_bytes}
    fact 'limits' bash -c 'ulimit -a'
    fact 'environment' bash -c "env | grep -E '^(CUDA|NVIDIA|ZARRS_CUDA|LD_LIBRARY_PATH)'"
    document[machine]="{$facts${facts:+,}"$'\n'"    \"absent\": [$absent]"$'\n'"  }"
    result=passed code=0
    end
}

# suites PART COMMAND...: the tests that need a GPU, by the command, which may be none.
suites() {
    local part=$1
    shift
    begin "$part"
    starts "$tests" && starts "$library_tests" || return
    local export=("$@")
    if [ -n "${ZARRS_CUDA_EXPORT:-}" ]; then
        export=(env "ZARRS_CUDA_EXPORT=$temporary/arrays" "$@")
        mkdir -p "$temporary/arrays"
    fi
    # What tests print is a result where they only look.
    run "$(left)" "${export[@]}" "$tests" ::on_gpu:: --show-output
    if [ "$result" = passed ]; then
        run "$(left)" "$@" "$library_tests" ::on_gpu:: --show-output
    fi
    if [ -n "${ZARRS_CUDA_EXPORT:-}" ] &&
        ! tar -C "$temporary/arrays" -czf "$out/zarrs_cuda-gpu-arrays.tar.gz" . 2>>"$log" &&
        [ "$result" = passed ]; then
        result=failed
        printed+=$'\n'"the arrays could not be packed"
    fi
    end
}

if [ -n "${ZARRS_CUDA_SANITIZER+set}" ]; then
    sanitizer=$ZARRS_CUDA_SANITIZER
else
    sanitizer=
    for path in "$(command -v compute-sanitizer)" \
        /usr/local/cuda{,-*}/{bin,extras/compute-sanitizer}/compute-sanitizer \
        /opt/nvidia/{*,*/*,*/*/*,*/*/*/*,*/*/*/*/*}/compute-sanitizer; do
        if [ -f "$path" ] && [ -x "$path" ]; then
            sanitizer=$path
            break
        fi
    done
fi

# A test that only needs a context, to see whether a tool works on this machine.
probe=::on_gpu::kernels::the_driver_compiles_every_kernel

tool() {
    local name=$1 seconds=$((limit[$1] / 2)) reason
    # Not the driver's suite: it asks for what is refused, which memcheck reports.
    local filters=(::on_gpu::kernels ::on_gpu::engine) exclude=() option=--kernel-name-exclude
    if [ "$name" = initcheck ]; then
        # The kernels' own tests upload all that their kernels may read.
        filters=(::on_gpu::engine)
    fi
    if ! [ -f "$sanitizer" ] || ! [ -x "$sanitizer" ]; then
        without "$name" absent "compute-sanitizer is not installed"
        return
    fi
    begin "$name"
    starts "$tests" && starts "$library_tests" || return
    if [ "$name" = racecheck ] || [ "$name" = initcheck ]; then
        # nvCOMP's own kernels have known hazards. Older versions have another name for the option.
        if [[ $("$sanitizer" --help 2>&1) != *$option* ]]; then
            option=--kernel-regex-exclude
        fi
        exclude=("$option" kns=nvcomp)
    fi
    local command=(env ZARRS_CUDA_GPU_CASES=4 "$sanitizer" --tool "$name" --error-exitcode 9
        "${exclude[@]}")
    run "$seconds" "${command[@]}" "$tests" --test-threads=1 "$probe"
    if [ "$result" != passed ]; then
        reason=$(grep -v -e '^[=[:space:]]*$' -e 'ERROR SUMMARY' <<<"$printed" | tail -n 1)
        if [ "$result" = timeout ]; then
            reason="one test takes more than $seconds s"
        fi
        run "$(left)" "$tests" "$probe"
        if [ "$result" = passed ]; then
            without "$name" absent "unusable here: $reason"
            return
        fi
    fi
    run "$(left)" "${command[@]}" "$tests" --test-threads=1 "${filters[@]}"
    if [ "$result" = passed ]; then
        run "$(left)" "${command[@]}" "$library_tests" --test-threads=1 ::on_gpu::
    fi
    # A tool makes programs slower by a factor that nobody knows before.
    if [ "$result" = timeout ]; then
        result=incomplete
    fi
    end
}

# What is measured of each kernel: time, memory throughput, occupancy, and the sectors of a request.
metrics=gpu__time_duration.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed
metrics+=,sm__warps_active.avg.pct_of_peak_sustained_active
metrics+=,l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio
metrics+=,l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio

profile() {
    local ncu=${ZARRS_CUDA_NCU:-} path
    if [ -z "${ZARRS_CUDA_NCU+set}" ]; then
        for path in "$(command -v ncu)" /usr/local/cuda{,-*}/bin/ncu \
            /opt/nvidia/nsight-compute/*/ncu; do
            if [ -f "$path" ] && [ -x "$path" ]; then
                ncu=$path
                break
            fi
        done
    fi
    if ! [ -f "$ncu" ] || ! [ -x "$ncu" ]; then
        without profile absent "ncu is not installed"
        return
    fi
    if [ ! -e "$bench" ]; then
        without profile absent "it is not in this bundle"
        return
    fi
    begin profile
    starts "$bench" || return
    run "$(left)" "$ncu" --csv --metrics "$metrics" --launch-count 40 \
        --kernel-name 'regex:^(scatter|unscatter|gather|crc32c)' "$bench" --bench kernels
    if [ "$result" != passed ] && [[ $printed == *ERR_NVGPUCTRPERM* ]]; then
        without profile absent "this user may not read the counters of the GPU (ERR_NVGPUCTRPERM)"
        return
    fi
    if [ "$result" = passed ] && [[ $printed == *"No kernels were profiled"* ]]; then
        result=empty
    fi
    if [ "$result" = timeout ]; then
        result=incomplete
    fi
    end
}

# measure KEY SECTIONS... [-- COMMAND...]: runs sections of the benchmark, by the command if there is
# one. What the benchmark writes becomes a document of that key. Returns whether the sections ran.
measure() {
    local key=$1 file=$temporary/$1.json text= sections=()
    shift
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        sections+=("$1")
        shift
    done
    shift
    run "$(left)" env "ZARRS_CUDA_BENCH_OUT=$file" "$@" "$bench" --bench "${sections[@]}"
    if [ -s "$file" ]; then
        text=$(<"$file")
    fi
    # A benchmark that is ended leaves the sections that were complete.
    if [[ $text == \{*\} ]]; then
        document[$key]=$text
    elif [ "$result" = passed ]; then
        result=failed
        printed+=$'\n'"it wrote no results to $file"
    fi
    [ "$result" = passed ]
}

# measurement PART: begins a part that the benchmark's program measures. Returns whether it can.
measurement() {
    if [ ! -e "$bench" ]; then
        without "$1" absent "it is not in this bundle"
        return 1
    fi
    begin "$1"
    starts "$bench"
}

start() {
    measurement start || return
    # The driver keeps what it compiled. The first process has to compile, and the second does not.
    local cache=(env "CUDA_CACHE_PATH=$temporary/compiled" "CUDA_CACHE_DISABLE=0")
    measure start start -- "${cache[@]}" && measure start_again start -- "${cache[@]}"
    end
}

benchmark() {
    measurement benchmark || return
    # shellcheck disable=SC2086 # a list of words
    measure benchmark \
        ${ZARRS_CUDA_SECTIONS:-kernels bus pinned staging inputs whole compressed sweep} --
    end
}

connections() {
    measurement connections || return
    measure connections_8 shards -- env CUDA_DEVICE_MAX_CONNECTIONS=8 &&
        measure connections_32 shards -- env CUDA_DEVICE_MAX_CONNECTIONS=32
    end
}

# Whether a small program still gets a context and copies bytes there and back.
answers() {
    local program=("$bench" --probe)
    if [ ! -e "$bench" ]; then
        program=("$tests" "$probe")
    fi
    run 5 "${program[@]}"
    [ "$result" = passed ]
}

save
packed=$here/nvcomp/libnvcomp.so.6.xz
library=$temporary/libnvcomp.so.6
if [ -e "$packed" ]; then
    if xz --decompress --keep --stdout "$packed" >"$library" 2>>"$log" ||
        python3 -c 'import lzma, shutil, sys
shutil.copyfileobj(lzma.open(sys.argv[1]), open(sys.argv[2], "wb"))' \
            "$packed" "$library" 2>>"$log"; then
        environment+=("ZARRS_CUDA_NVCOMP=$library")
    else
        parts=(nvcomp "${parts[@]}")
        without nvcomp absent "neither xz nor python3 could decompress it"
    fi
fi

hung=false
for name in "${parts[@]}"; do
    if "$hung"; then
        without "$name" skipped "after a part that did not end, the GPU did not answer within 5 s"
        continue
    fi
    timed_out=false
    case $name in
    nvcomp) ;;
    machine | start | benchmark | connections | profile) "$name" ;;
    quick) suites quick env ZARRS_CUDA_GPU_CASES=8 ;;
    chunks | reads)
        if measurement "$name"; then
            measure "$name" "$name" --
            end
        fi
        ;;
    stream)
        if measurement stream; then
            measure stream stream shards --
            end
        fi
        ;;
    suites) suites suites ;;
    *) tool "$name" ;;
    esac
    if "$timed_out" && ! answers; then
        hung=true
    fi
done

if [ "$failed" -eq 0 ]; then
    passed=true
fi
save
printf 'wrote %s and %s\n' "$json" "$log"
exit "$failed"
