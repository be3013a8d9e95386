"""Machine code for the CPU, which LLVM makes on first use (llvmlite) and XLA's programs call.

XLA:CPU packs the weight of every product anew, which takes longer than a product of few rows, and begins some twenty
small operations for attention. Here weights lie as they are read (`panels`), and attention is one operation.
What a row gets is the same to the bit whatever is beside it: where all of a model is made of these, a token's logits
are the same in any tree and batch.

    code       what LLVM makes machine code of: pointers, loops, vectors of 16 numbers
    calls      what XLA calls: handlers of its foreign function interface
    threads    work that several threads take part in
    math       exp, sums, transposition
    numbers    what is multiplied: float32, pairs of bfloat16, rounded weights
    tiles      sums of products in registers; those below are made of them
    products   rows times a weight of floats
    rounded    rows times a rounded weight
    blocks     rows of a head over some keys and values
    attention  `ops.attention_case.Case`, made of them
    norms      root mean square norms
    largest    the largest numbers of rows
    given      what layers and heads are given
    parts      what products and the halves of a decoder layer are made of
    first_half norm, projections, rotation, attention, output matrix
    second_half norm, MLP
    library    all of it, in parts, once a process
"""
