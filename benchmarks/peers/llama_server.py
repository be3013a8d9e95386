"""llama.cpp's server out of the Python package xllamacpp, under the options of `llama-server` that the benchmarks use.

It is run by a Python that has xllamacpp, in an environment of its own, where no build of llama.cpp is at hand:

    python -m venv XLLAMACPP && XLLAMACPP/bin/pip install xllamacpp
    python -m benchmarks.serve.against_servers --llama-cpp XLLAMACPP/bin/python ...
"""

import argparse
import signal

import xllamacpp

KIND = "COMMON_SPECULATIVE_TYPE_"  # that llama.cpp calls `ngram-simple` KIND + "NGRAM_SIMPLE"


def main() -> None:
    types = {name.removeprefix(KIND): value for name, value in xllamacpp.common_speculative_type.__members__.items()}
    modes = {name.lower().replace("_", "-"): value for name, value in types.items() if name != "COUNT"}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--threads-batch", type=int, required=True)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--ctx-size", type=int, default=0)
    parser.add_argument("--spec-type", choices=list(modes), default="none")
    options = parser.parse_args()

    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.port, params.n_parallel, params.n_ctx = options.port, options.parallel, options.ctx_size
    params.cpuparams.n_threads, params.cpuparams_batch.n_threads = options.threads, options.threads_batch
    params.use_jinja = True  # as llama-server does
    params.speculative.types = [modes[options.spec_type]]
    server = xllamacpp.Server(params)  # listens on a thread of its own, until it is no more
    print(server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
