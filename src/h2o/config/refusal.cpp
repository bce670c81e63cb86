#include "h2o/config/refusal.h"

#include <utility>

static thread_local h2o_reason last_reason = h2o_reason::NONE;

h2o_refusal::h2o_refusal(h2o_reason reason, const std::string & what) : std::runtime_error(what) {
    h2o_set_reason(reason);
}

void h2o_set_reason(h2o_reason reason) {
    last_reason = reason;
}

h2o_reason h2o_take_reason() {
    return std::exchange(last_reason, h2o_reason::NONE);
}
