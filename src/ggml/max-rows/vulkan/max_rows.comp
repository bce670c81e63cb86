// Maximum of each row: upstream's sum_rows.comp with another operation. A row with NaN gives NaN.
#version 450

layout (local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;

layout (constant_id = 0) const uint BLOCK_SIZE = 32;

layout (binding = 0) readonly  buffer A { float data_a[]; };
layout (binding = 1) writeonly buffer D { float data_d[]; };

// vk_op_sum_rows_push_constants
layout (push_constant) uniform parameter
{
    uint n_cols;
    uint ne01, ne02;
    uint nb01, nb02, nb03;
    uint nb11, nb12, nb13;
    float weight;
    uint misalign_offsets;
    uint ne0_12mp, ne0_12L;
    uint ne0_1mp, ne0_1L;
} p;

shared float tmp[BLOCK_SIZE];

float max_or_nan(const float a, const float b) {
    return b > a || isnan(b) ? b : a;
}

void main() {
    const uint row = gl_WorkGroupID.z*262144 + gl_WorkGroupID.y*512 + gl_WorkGroupID.x;
    const uint col = gl_LocalInvocationID.x;

    const uint i03 = row/(p.ne01*p.ne02);
    const uint i02 = row/p.ne01 - i03*p.ne02;
    const uint i01 = row%p.ne01;

    const uint src_idx = (p.misalign_offsets >> 16)    + i01*p.nb01 + i02*p.nb02 + i03*p.nb03;
    const uint dst_idx = (p.misalign_offsets & 0xFFFF) + i01*p.nb11 + i02*p.nb12 + i03*p.nb13;

    if (dst_idx >= data_d.length()) { // there are more work groups than rows
        return;
    }

    float res = uintBitsToFloat(0xFF800000); // -inf
    for (uint i = col; i < p.n_cols; i += BLOCK_SIZE) {
        res = max_or_nan(res, data_a[src_idx + i]);
    }
    tmp[col] = res;

    barrier();
    for (uint s = BLOCK_SIZE/2; s > 0; s >>= 1) {
        if (col < s) {
            tmp[col] = max_or_nan(tmp[col], tmp[col + s]);
        }
        barrier();
    }

    if (col == 0) {
        data_d[dst_idx] = tmp[0];
    }
}
