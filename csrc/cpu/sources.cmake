# The host kernels: TX_CPU_SOURCES, and the flags of the files that are compiled for one instruction set, which without
# them have none: TX_PORTABLE_ALONE leaves the portable set alone, for tests that need no more.
set(TX_CPU_SOURCES
  ${CMAKE_CURRENT_LIST_DIR}/../core/cache_sets_cpu.cpp
  ${CMAKE_CURRENT_LIST_DIR}/../core/order_cpu.cpp
  ${CMAKE_CURRENT_LIST_DIR}/../core/pieces_cpu.cpp
  ${CMAKE_CURRENT_LIST_DIR}/../core/plan_cpu.cpp
  ${CMAKE_CURRENT_LIST_DIR}/../core/prefetch_cpu.cpp
  ${CMAKE_CURRENT_LIST_DIR}/../core/stores_cpu.cpp
  ${CMAKE_CURRENT_LIST_DIR}/../core/tile_shape_cpu.cpp
  ${CMAKE_CURRENT_LIST_DIR}/../core/tiles_cpu.cpp
  ${CMAKE_CURRENT_LIST_DIR}/isa.cpp
  ${CMAKE_CURRENT_LIST_DIR}/micro_avx2.cpp
  ${CMAKE_CURRENT_LIST_DIR}/micro_avx512.cpp
  ${CMAKE_CURRENT_LIST_DIR}/micro_avx512vbmi.cpp
  ${CMAKE_CURRENT_LIST_DIR}/micro_neon.cpp
  ${CMAKE_CURRENT_LIST_DIR}/micro_portable.cpp
  ${CMAKE_CURRENT_LIST_DIR}/run.cpp)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND NOT TX_PORTABLE_ALONE)
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/micro_avx2.cpp PROPERTIES COMPILE_OPTIONS "-mavx2")
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/micro_avx512.cpp PROPERTIES
    COMPILE_OPTIONS "-mavx512f;-mavx512bw")
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/micro_avx512vbmi.cpp PROPERTIES
    COMPILE_OPTIONS "-mavx512f;-mavx512bw;-mavx512vbmi")
endif()
