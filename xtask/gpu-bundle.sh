#!/usr/bin/env bash
# Runs what needs a GPU, and writes what came of it to ${OUT:-.}/zarrs_cuda-gpu.json and the logs
# of all parts to ${OUT:-.}/zarrs_cuda-gpu-logs/. Fails if a part failed.
#
# Needs Linux on x86-64 and an NVIDIA driver for CUDA 12.0 or newer. compute-sanitizer is used if it
# is on the path or in /usr/local/cuda.
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
out=$(mkdir -p "${OUT:-.}" && cd "${OUT:-.}" && pwd)
logs=$out/zarrs_cuda-gpu-logs
mkdir -p "$logs"

export ZARRS_CUDA_REQUIRE_GPU=1
export RUST_BACKTRACE=1
export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

# A string of JSON. Control characters other than the ends of lines and tabs are left out.
quote() {
    printf '"%s"' "$(tr -d '\000-\010\013-\037' | sed 's/\\/\\\\/g; s/"/\\"/g; s/\t/\\t/g' |
        awk '{ printf "%s%s", separator, $0; separator = "\\n" }')"
}

parts=()
failed=0

# part NAME SECONDS COMMAND...: run it, with a limit, and keep how it ended.
part() {
    local name=$1 limit=$2 begin=$SECONDS code result more=
    shift 2
    printf '== %s\n' "$name"
    timeout --kill-after=10 "$limit" "$@" >"$logs/$name.log" 2>&1
    code=$?
    # A test binary that ran nothing has shown nothing.
    if [ "$code" -eq 124 ] || [ "$code" -eq 137 ]; then
        result=timeout
    elif [ "$code" -ne 0 ]; then
        result=failed
    elif grep -q '^running 0 tests$' "$logs/$name.log"; then
        result=empty
    else
        result=passed
    fi
    if [ "$result" != passed ]; then
        failed=1
        more=", \"log\": $(tail -n 60 "$logs/$name.log" | quote)"
        tail -n 60 "$logs/$name.log"
    fi
    local tests
    tests=$(grep -h '^test result: ' "$logs/$name.log" | tail -n 1 | quote)
    printf '%s: %s, %s s\n' "$name" "$result" "$((SECONDS - begin))"
    parts+=("{ \"part\": \"$name\", \"result\": \"$result\", \"code\": $code, \
\"seconds\": $((SECONDS - begin)), \"tests\": $tests$more }")
}

absent() {
    printf '%s: absent, %s\n' "$1" "$2"
    parts+=("{ \"part\": \"$1\", \"result\": \"absent\", \"reason\": $(quote <<<"$2") }")
}

if [ -e "$here/nvcomp/libnvcomp.so.6.xz" ]; then
    if xz --decompress --keep --stdout "$here/nvcomp/libnvcomp.so.6.xz" \
        >"$logs/libnvcomp.so.6" 2>"$logs/nvcomp.log" ||
        python3 -c 'import lzma, shutil, sys
shutil.copyfileobj(lzma.open(sys.argv[1]), open(sys.argv[2], "wb"))' \
            "$here/nvcomp/libnvcomp.so.6.xz" "$logs/libnvcomp.so.6" 2>>"$logs/nvcomp.log"; then
        export ZARRS_CUDA_NVCOMP=$logs/libnvcomp.so.6
    else
        absent nvcomp "neither xz nor python3 could decompress it"
    fi
fi

part suites 1200 "$here/zarrs_cuda-tests" ::gpu::

sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
for tool in memcheck racecheck synccheck initcheck; do
    if [ -x "$sanitizer" ]; then
        # Not the driver's suite: it asks for what is refused, which memcheck reports.
        ZARRS_CUDA_GPU_CASES=4 part "$tool" 900 "$sanitizer" --tool "$tool" --error-exitcode 9 \
            "$here/zarrs_cuda-tests" ::gpu::kernels ::gpu::engine --test-threads=1
    else
        absent "$tool" "compute-sanitizer is not installed"
    fi
done

benchmark=null
if [ -x "$here/zarrs_cuda-bench" ]; then
    # Writes target/bench/device.json where it runs.
    rm -f "$logs/target/bench/device.json"
    part benchmark 1200 env -C "$logs" "$here/zarrs_cuda-bench" --bench
    if [ -s "$logs/target/bench/device.json" ]; then
        benchmark=$(cat "$logs/target/bench/device.json")
    fi
else
    absent benchmark "it is not in this bundle"
fi
rm -f "$logs/libnvcomp.so.6"

smi() {
    timeout 30 nvidia-smi "--query-gpu=$1" --format=csv,noheader 2>/dev/null | head -n 1 | quote
}

cat >"$out/zarrs_cuda-gpu.json" <<END
{
  "commit": "$(cat "$here/commit")",
  "date": "$(date -u +%Y-%m-%dT%H:%M:%SZ)",
  "gpu": $(smi name),
  "driver": $(smi driver_version),
  "memory": $(smi memory.total),
  "compute_capability": $(smi compute_cap),
  "cpu": $(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1 | quote),
  "passed": $([ "$failed" -eq 0 ] && echo true || echo false),
  "parts": [
$(for ((i = 0; i < ${#parts[@]}; i++)); do
    printf '    %s%s\n' "${parts[i]}" "$([ "$i" -lt $((${#parts[@]} - 1)) ] && echo ,)"
done)
  ],
  "benchmark": $benchmark
}
END
printf 'wrote %s\n' "$out/zarrs_cuda-gpu.json"
exit "$failed"
