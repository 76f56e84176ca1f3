# llama.cpp without its tools and common library: the Python package needs neither, and the build is half as long.
set(LLAMA_BUILD_COMMON OFF)
