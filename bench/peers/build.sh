#!/usr/bin/env bash
# Builds llama.cpp and the two meters: build.sh FOLDER [SDIST]
#
# FOLDER gets, for each VARIANT, VARIANT/bin with the peer's libraries, and bin/ with peer_bench and
# membw. SDIST is the source distribution llama-cpp-python 0.3.36, or is downloaded with pip.
#   native  -march=native: AVX-512 and AMX where this machine has them
#   avx512  AVX-512, VNNI and BF16, no AMX; only the kernels, the rest is native's
#   avx2    AVX2, FMA and F16C only; likewise
# VARIANTS names others than the default "native avx2".
set -euo pipefail
[ $# -ge 1 ] || { sed -n 's/^# //p' "$0" | head -1 >&2; exit 2; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$1"
cd "$1"
sdist=${2:-}
version=0.3.36
source=llama_cpp_python-$version/vendor/llama.cpp

if [ ! -d "$source" ]; then
  if [ -z "$sdist" ]; then
    python3 -m pip download --no-deps --no-binary :all: \
      "llama-cpp-python==$version"
    sdist=llama_cpp_python-$version.tar.gz
  fi
  tar xzf "$sdist"
fi

options=(-G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DLLAMA_CURL=OFF
  -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF
  -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF)
avx2=(-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON)
avx512=("${avx2[@]}" -DGGML_AVX512=ON -DGGML_AVX512_VBMI=ON -DGGML_AVX512_VNNI=ON
  -DGGML_AVX512_BF16=ON -DGGML_AVX_VNNI=ON)
for variant in ${VARIANTS:-native avx2}; do
  target=ggml-cpu
  case $variant in
    native) isa=(-DGGML_NATIVE=ON) target=llama ;;
    avx512) isa=("${avx512[@]}") ;;
    avx2) isa=("${avx2[@]}" -DGGML_AVX512=OFF -DGGML_AVX_VNNI=OFF) ;;
    *) echo "VARIANTS: $variant, expected native, avx512 or avx2" >&2; exit 2 ;;
  esac
  cmake -S "$source" -B "$variant" "${options[@]}" "${isa[@]}"
  cmake --build "$variant" --parallel "${JOBS:-2}" --target "$target"
done

mkdir -p bin
gcc -std=gnu11 -O3 -pthread -o bin/membw "$here/membw.c"
gcc -std=gnu11 -O2 -I"$source/include" -I"$source/ggml/include" -o bin/peer_bench \
  "$here/peer_bench.c" -Lnative/bin -lllama -lggml -lggml-base -lggml-cpu \
  -Wl,-rpath,"$PWD/native/bin"
