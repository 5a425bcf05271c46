#include "core/plan_cuda.h"
#include "core/normalize.h"
namespace tx { Plan plan_cuda(const Problem& p, const DeviceFacts&) { Plan q; q.problem = normalize(p); q.backend=Backend::kCuda; return q; }
std::string why_not_cuda(Kernel, const Problem&, const DeviceFacts&){return "";}
Plan plan_cuda_forced(const Problem& p, const DeviceFacts& f, Kernel) { return plan_cuda(p, f);} const std::vector<Kernel>& kernels_cuda(){ static std::vector<Kernel> k; return k; } }
