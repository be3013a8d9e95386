"""Random parameters of a Flax module, without the forward pass that Flax runs to find them."""

from typing import Any

import flax.linen as nn
import jax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, jaxpr_as_fun


def random_params(module: nn.Module, key: jax.Array, *args: Any) -> dict[str, Any]:
    """Makes the parameters that `module.init` makes with the module's method `initialise`, bit for bit.

    Traces `initialise` and evaluates only what the parameters depend on, one operation after the other. So normals of
    one shape are compiled once a process, for all modules: compiled as a whole, every config took seconds.

    Args:
        args: of `initialise`.
    """

    def init(key: jax.Array) -> dict[str, Any]:
        return module.init(key, *args, method=type(module).initialise)["params"]

    closed, params = jax.make_jaxpr(init, return_shape=True)(key)
    live_vars, equations = set(closed.jaxpr.outvars), list[JaxprEqn]()
    for equation in reversed(closed.jaxpr.eqns):
        if live_vars.intersection(equation.outvars):
            equations.append(equation)
            live_vars.update(operand for operand in equation.invars if not isinstance(operand, Literal))
    evaluated = jaxpr_as_fun(ClosedJaxpr(closed.jaxpr.replace(eqns=equations[::-1]), closed.consts))
    return jax.tree.unflatten(jax.tree.structure(params), evaluated(key))
