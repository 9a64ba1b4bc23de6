# Debian's compiler for 64-bit ARM on another machine; what it builds runs in qemu's emulation.
# QEMU_CPU in the environment chooses the CPU (qemu-aarch64 -cpu help); without it, all that qemu
# knows.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)
