"""Machine code for CPUs, compiled by LLVM (llvmlite) on first use and called by XLA's programs through its FFI.

XLA:CPU packs the weight of every product anew, which takes longer than a product of few rows, and starts some twenty
small operations for attention. Here weights are packed once (`panels`), and a block of a layer is one operation. The
result of a row does not depend on the other rows, bit for bit: where all of a model runs here, a token's
logits are the same in any tree and batch.

    code                llvmlite: pointers, loops, vectors of 16 elements, compilation
    calls               handlers that XLA calls, `signatures` of their buffers, `ffi_abi` of XLA's structs
    threads             parallel phases; `worker_pool`, threads that spin for the next job
    math                exp, sums of lanes, transposition
    arithmetic          products of float32, pairs of bfloat16, quantized weights
    tiles               sums of products in registers; `addressing` of their operands
    float_products      rows times a packed float weight
    quantized_products  rows times a packed quantized weight
    packed_linear       rows and packed weights as the blocks use them; `arguments` of the blocks
    blocks, attention   attention over a block of keys; `ops.attention_call.AttentionCall`
    attention_block     norm, projections, rotation, attention, output projection; its tasks in `attention_tasks`
    mlp_block           norm, MLP
    norms, ranking      root mean square norms, top-k
    library             all handlers, compiled and registered once in a process
"""
