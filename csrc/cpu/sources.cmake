# The host kernels: TX_CPU_SOURCES, and the flags of the files that need their own.
set(TX_CPU_SOURCES
  ${CMAKE_CURRENT_LIST_DIR}/../core/plan_cpu.cpp
  ${CMAKE_CURRENT_LIST_DIR}/run.cpp)
