#!/usr/bin/env bash
# Runs what needs a GPU: bash run.sh [PART...], all parts where none is named.
#
#   suites        the tests that need a GPU                                  240 s
#   benchmark     what the kernels, the bus and the engine reach             330 s
#   memcheck, racecheck, synccheck, initcheck
#                 tests under one tool of compute-sanitizer                  120 s each
#   profile       what ncu says of scatter, gather and crc32c                90 s
#
# The first two take less than ten minutes together, and so do the other five.
#
# Writes two files, or three, into the folder OUT, or the working directory, over those of an earlier run:
# zarrs_cuda-gpu.json, anew before and after every part, so that whoever ends this script early
# loses one part alone; and zarrs_cuda-gpu.log, what all parts printed. Fails if a part failed.
#
# A part is "passed", "failed", "timeout", "empty" (no test ran), "cannot start" (the loader refused
# the program), "absent" (nothing to run it with: a reason says so, and it is no failure), "skipped"
# (the suites had hung the GPU), "running" or "waiting" (this script was ended before).
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

all=(suites benchmark memcheck racecheck synccheck initcheck profile)
declare -A limit=([suites]=240 [benchmark]=330 [memcheck]=120 [racecheck]=120 [synccheck]=120
    [initcheck]=120 [profile]=90)

for name in "$@"; do
    if [[ " ${all[*]} " != *" $name "* ]]; then
        printf 'there is no part "%s"; the parts are: %s\n' "$name" "${all[*]}" >&2
        exit 2
    fi
done
# Each once, and the suites first.
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

# Containers may have the driver's libraries where the loader does not look.
libcuda=${ZARRS_CUDA_LIBCUDA:-/usr/local/nvidia/lib64}
known=$(PATH=$PATH:/usr/sbin:/sbin ldconfig -p 2>/dev/null)
if [ -e "$libcuda/libcuda.so.1" ] &&
    { [ -n "${ZARRS_CUDA_LIBCUDA:-}" ] || [[ $known != *libcuda.so.1* ]]; }; then
    environment+=("LD_LIBRARY_PATH=$libcuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}")
fi

# The first line of what nvidia-smi says, or null four times.
gpu=(null null null null)
if lines=$(PATH=$PATH:/usr/local/nvidia/bin timeout 30 nvidia-smi \
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
document=null
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
        printf '\n  ],\n  "benchmark": %s\n}\n' "$document"
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
        failed=1
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
    run 30 "$1" --list ::on_gpu::
    if [ "$code" -ne 0 ]; then
        result='cannot start'
        end
        return 1
    fi
}

suites() {
    begin suites
    starts "$tests" && starts "$library_tests" || return
    local export=()
    if [ -n "${ZARRS_CUDA_EXPORT:-}" ]; then
        export=(env "ZARRS_CUDA_EXPORT=$temporary/arrays")
        mkdir -p "$temporary/arrays"
    fi
    # What tests print is a result where they only look.
    run "${limit[suites]}" "${export[@]}" "$tests" ::on_gpu:: --show-output
    if [ "$result" = passed ]; then
        run "$(left)" "$library_tests" ::on_gpu:: --show-output
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
    local name=$1 seconds=$((limit[$1] < 60 ? limit[$1] : 60)) reason
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
        run "$seconds" "$tests" "$probe"
        if [ "$result" = passed ]; then
            without "$name" absent "unusable here: $reason"
            return
        fi
    fi
    run "${limit[$name]}" "${command[@]}" "$tests" --test-threads=1 "${filters[@]}"
    if [ "$result" = passed ]; then
        run "$(left)" "${command[@]}" "$library_tests" --test-threads=1 ::on_gpu::
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
    run "${limit[profile]}" "$ncu" --csv --metrics "$metrics" --launch-count 40 \
        --kernel-name 'regex:^(scatter|unscatter|gather|crc32c)' "$bench" --bench kernels
    if [ "$result" != passed ] && [[ $printed == *ERR_NVGPUCTRPERM* ]]; then
        without profile absent "this user may not read the counters of the GPU (ERR_NVGPUCTRPERM)"
        return
    fi
    if [ "$result" = passed ] && [[ $printed == *"No kernels were profiled"* ]]; then
        result=empty
    fi
    end
}

benchmark() {
    local file=$temporary/device.json text=
    if [ ! -e "$bench" ]; then
        without benchmark absent "it is not in this bundle"
        return
    fi
    begin benchmark
    starts "$bench" || return
    rm -f "$file"
    # shellcheck disable=SC2086 # a list of words
    run "${limit[benchmark]}" env "ZARRS_CUDA_BENCH_OUT=$file" "$bench" --bench ${ZARRS_CUDA_SECTIONS:-}
    if [ -s "$file" ]; then
        text=$(<"$file")
    fi
    # A benchmark that is ended leaves the sections that were complete.
    if [[ $text == \{*\} ]]; then
        document=$text
    elif [ "$result" = passed ]; then
        result=failed
        printed+=$'\n'"it wrote no results to $file"
    fi
    end
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
        without "$name" skipped "the suites did not end, and may have hung the GPU"
        continue
    fi
    case $name in
    nvcomp) ;;
    suites)
        suites
        if [ "$result" = timeout ]; then
            hung=true
        fi
        ;;
    benchmark) benchmark ;;
    profile) profile ;;
    *) tool "$name" ;;
    esac
done

if [ "$failed" -eq 0 ]; then
    passed=true
fi
save
printf 'wrote %s and %s\n' "$json" "$log"
exit "$failed"
