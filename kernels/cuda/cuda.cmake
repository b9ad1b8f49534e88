# CUDA in the build: on by itself where nvcc is found (AKV_CUDA=AUTO), or as told.
#
# akv_cuda_kernels(FILE…) lists .cu files of the calling folder once. They become
#   akv_kernels_cuda  by nvcc, one object each, where CUDA is on;
#   akv_kernels_shim  by the host compiler on tests/support/cuda_shim, for the tests, always.
# akv_device_test(NAME SRCS… CUDA_SRCS… DEPS… LABELS…) is akv_test on the shim, and once more as
#   NAME_random with the threads of a block in random order (label order). Where CUDA is on it also
#   makes NAME_gpu for a real device, part of target gpu_tests and not of the default build.

set(AKV_CUDA AUTO CACHE STRING "CUDA kernels: AUTO (on where nvcc is found), ON or OFF")
set_property(CACHE AKV_CUDA PROPERTY STRINGS AUTO ON OFF)
set(AKV_CUDA_ARCHITECTURES "80-real;90-real;90-virtual" CACHE STRING
    "what nvcc compiles for; the last one is the PTX for later devices")

# Sanitizers and coverage are the host compiler's: those builds run the shim.
set(AKV_CUDA_ENABLED OFF)
if(AKV_CUDA STREQUAL "ON" OR (AKV_CUDA STREQUAL "AUTO" AND NOT AKV_SANITIZE
                              AND NOT CMAKE_CXX_FLAGS MATCHES "--coverage"))
  find_program(AKV_NVCC nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(AKV_NVCC)
    set(AKV_CUDA_ENABLED ON)
  elseif(AKV_CUDA STREQUAL "ON")
    message(FATAL_ERROR "AKV_CUDA=ON, but nvcc was not found (PATH, CUDA_HOME, /usr/local/cuda)")
  endif()
endif()

if(AKV_CUDA_ENABLED)
  set(CMAKE_CUDA_COMPILER ${AKV_NVCC})
  set(CMAKE_CUDA_ARCHITECTURES ${AKV_CUDA_ARCHITECTURES})
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 knows no C++20 of nvcc
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${PROJECT_SOURCE_DIR}/kernels/cuda/nvcc.sh ${AKV_CCACHE})
  find_package(CUDAToolkit REQUIRED)
endif()
message(STATUS "CUDA: ${AKV_CUDA_ENABLED} (AKV_CUDA=${AKV_CUDA})")

define_property(GLOBAL PROPERTY AKV_CUDA_SOURCES BRIEF_DOCS "absolute paths of the kernels' .cu files")

function(akv_cuda_kernels)
  foreach(file ${ARGN})
    set_property(GLOBAL APPEND PROPERTY AKV_CUDA_SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/${file})
  endforeach()
endfunction()

# How nvcc compiles a target's .cu files. Constexpr functions of shared headers run on the device.
function(akv_nvcc_options target)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:
                         --expt-relaxed-constexpr -Xptxas=-v -Werror=all-warnings -Xcompiler=-Wall,-Wextra>)
endfunction()

# How the host compiler compiles .cu files of the calling folder, on the shim.
function(akv_shim_sources)
  set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS
                              "-x;c++;-Wno-unknown-pragmas")
endfunction()

function(akv_device_test name)
  cmake_parse_arguments(A "" "TIMEOUT" "SRCS;CUDA_SRCS;DEPS;LABELS" ${ARGN})
  if(NOT AKV_TESTS)
    return()
  endif()
  # A file has one language in a folder, so the two builds of a test's own .cu files differ in name.
  set(shim_sources)
  foreach(file ${A_CUDA_SRCS})
    set(copy ${CMAKE_CURRENT_BINARY_DIR}/${file}.shim.cc)
    file(CONFIGURE OUTPUT ${copy} CONTENT "#include \"${CMAKE_CURRENT_SOURCE_DIR}/${file}\"\n")
    set_source_files_properties(${copy} PROPERTIES COMPILE_OPTIONS "-Wno-unknown-pragmas"
                                OBJECT_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${file})
    list(APPEND shim_sources ${copy})
  endforeach()
  akv_test(${name} SRCS ${A_SRCS} ${shim_sources}
           DEPS ${A_DEPS} akv_kernels_shim akv_device_shim akv_cuda_shim
           LABELS ${A_LABELS} TIMEOUT ${A_TIMEOUT})
  add_test(NAME ${name}_random COMMAND ${name})
  set_tests_properties(${name}_random PROPERTIES ENVIRONMENT AKV_SHIM_ORDER=random:1 LABELS order
                       TIMEOUT 600)
  if(AKV_CUDA_ENABLED)
    akv_binary(${name}_gpu SRCS ${A_SRCS} ${A_CUDA_SRCS}
               DEPS ${A_DEPS} akv_kernels_cuda akv_device_cuda CUDA::cudart_static
                    GTest::gtest GTest::gmock GTest::gtest_main)
    akv_nvcc_options(${name}_gpu)
    target_compile_definitions(${name}_gpu PRIVATE AKV_ON_GPU
                               AKV_GOLDEN_DIR="${PROJECT_SOURCE_DIR}/tests/golden")
    set_target_properties(${name}_gpu PROPERTIES EXCLUDE_FROM_ALL ON)
    add_dependencies(gpu_tests ${name}_gpu)
  endif()
endfunction()

if(AKV_CUDA_ENABLED)
  add_custom_target(gpu_tests)
endif()
