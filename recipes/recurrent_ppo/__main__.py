"""Recurrent PPO (Schulman et al. 2017) in JAX on a task that needs memory: with prnn's GRU, and with one in lax.scan.

    python -m recipes.recurrent_ppo --gru both

An update is one compiled program, as in PureJaxRL (Lu et al. 2022): environments and agent live on the device. The
GRU's states are reset where an episode begins inside a rollout. `--gru both` trains twice from the same seed and prints
the share of right answers of both, which are the same but for rounding, and the time of an update.

The environment: an episode shows one of 4 cues, then distractors for 4 to 12 timesteps, and then asks; the answer is
the action of that timestep, and is rewarded with 1 where it is the cue.
"""

import argparse
import dataclasses
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import prnn.jax

Array = jax.Array
Params = dict[str, Any]

CUES, DISTRACTORS, SHORTEST, LONGEST = 4, 3, 4, 12
INPUTS = CUES + 1 + DISTRACTORS


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes and constants of the training."""

    environments: int = 64
    steps: int = 64
    hidden: int = 128
    epochs: int = 4
    minibatches: int = 4
    learning_rate: float = 1e-3
    discount: float = 0.99
    trace: float = 0.95
    clip: float = 0.2
    entropy: float = 0.01
    max_gradient: float = 0.5


class Episode(NamedTuple):
    """Each environment's cue, the timesteps until it asks, and whether the episode has just begun."""

    cue: Array
    left: Array
    is_new: Array


def begin(key: Array, count: int) -> Episode:
    cue, left = jax.random.split(key)
    return Episode(
        jax.random.randint(cue, (count,), 0, CUES),
        jax.random.randint(left, (count,), SHORTEST, LONGEST + 1),
        jnp.ones(count, bool),
    )


def observe(key: Array, episode: Episode) -> Array:
    """(N, INPUTS): the cue in the first timestep, whether it is asked for, and distractors."""
    cue = jax.nn.one_hot(episode.cue, CUES) * episode.is_new[:, None]
    noise = jax.random.bernoulli(key, 0.5, (len(episode.cue), DISTRACTORS))
    return jnp.concatenate([cue, (episode.left == 0)[:, None], noise], axis=1)


def advance(key: Array, episode: Episode, action: Array) -> tuple[Episode, Array, Array]:
    """The next episode state, the reward, and whether the episode was over."""
    over = episode.left == 0
    reward = jnp.where(over & (action == episode.cue), 1.0, 0.0)
    going = Episode(episode.cue, episode.left - 1, jnp.zeros_like(over))
    anew = begin(key, len(over))
    return jax.tree.map(lambda new, old: jnp.where(over, new, old), anew, going), reward, over


# ---- The agent: a GRU and two linear layers


def init_agent(key: Array, config: Config) -> Params:
    keys = jax.random.split(key, 2)
    outputs = 0.1 * jax.random.normal(keys[1], (config.hidden, CUES + 1)) / config.hidden**0.5
    return {"gru": prnn.jax.init_params(keys[0], "gru", INPUTS, config.hidden), "outputs": outputs}


def heads(params: Params, h: Array) -> tuple[Array, Array]:
    """Logits of the actions, and the value."""
    out = h @ params["outputs"]
    return out[..., :CUES], out[..., CUES]


def gru_step(layer: Any, h: Array, x: Array) -> Array:
    gates = x @ layer["weight_ih"].T + layer["bias_ih"]
    recurrent = h @ layer["weight_hh"].T + layer["bias_hh"]
    (r, z, n), (r_h, z_h, n_h) = jnp.split(gates, 3, -1), jnp.split(recurrent, 3, -1)
    update = jax.nn.sigmoid(z + z_h)
    return (1 - update) * jnp.tanh(n + jax.nn.sigmoid(r + r_h) * n_h) + update * h


def gru_of_scan(layers: Any, x: Array, h: Array, reset: Array) -> Array:
    """x (T, N, INPUTS), h (N, H), reset (T, N) to the states (T, N, H)."""

    def step(h: Array, given: tuple[Array, Array]) -> tuple[Array, Array]:
        h = gru_step(layers[0], jnp.where(given[1][:, None], 0, h), given[0])
        return h, h

    return jax.lax.scan(step, h, (x, reset))[1]


def gru_of_prnn(layers: Any, x: Array, h: Array, reset: Array) -> Array:
    """The same."""
    return prnn.jax.gru(layers, x, h[None], reset=reset, precision="highest")[0]


GRUS: dict[str, Callable[..., Array]] = {"prnn": gru_of_prnn, "scan": gru_of_scan}


# ---- PPO


class Rollout(NamedTuple):
    """(T, N, ...) of a rollout; is_new: an episode begins."""

    x: Array
    is_new: Array
    action: Array
    log_prob: Array
    value: Array
    reward: Array
    over: Array


class Learner(NamedTuple):
    params: Params
    optimizer: Any
    episode: Episode
    h: Array
    key: Array


def roll_out(config: Config, learner: Learner) -> tuple[Learner, Rollout]:
    """Acts for config.steps timesteps, one at a time."""

    def step(carry: tuple[Episode, Array, Array], _: None) -> tuple[tuple[Episode, Array, Array], Rollout]:
        episode, h, key = carry
        key, seen, acted, advanced = jax.random.split(key, 4)
        x = observe(seen, episode)
        h = gru_step(learner.params["gru"][0], jnp.where(episode.is_new[:, None], 0, h), x)
        logits, value = heads(learner.params, h)
        action = jax.random.categorical(acted, logits)
        log_prob = log_prob_of(logits, action)
        after, reward, over = advance(advanced, episode, action)
        return (after, h, key), Rollout(x, episode.is_new, action, log_prob, value, reward, over)

    start = (learner.episode, learner.h, learner.key)
    (episode, h, key), rollout = jax.lax.scan(step, start, None, config.steps)
    return learner._replace(episode=episode, h=h, key=key), rollout


def log_prob_of(logits: Array, action: Array) -> Array:
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], -1)[..., 0]


def advantages(config: Config, rollout: Rollout) -> Array:
    """Generalised advantage estimates (Schulman et al. 2016). The value after the last timestep counts as 0."""

    def step(carry: tuple[Array, Array], row: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
        following, next_value = carry
        value, reward, over = row
        error = reward + config.discount * jnp.where(over, 0, next_value) - value
        advantage = error + config.discount * config.trace * jnp.where(over, 0, following)
        return (advantage, value), advantage

    zeros = jnp.zeros(config.environments)
    rows = (rollout.value, rollout.reward, rollout.over)
    return jax.lax.scan(step, (zeros, zeros), rows, reverse=True)[1]


def make_update(config: Config, gru: Callable[..., Array]) -> Callable[[Learner], tuple[Learner, Array]]:
    """The function of one update: a rollout, and epochs of minibatches. Returns the share of right answers, too."""
    optimizer = make_optimizer(config)

    def loss(params: Params, h: Array, rollout: Rollout, advantage: Array) -> Array:
        logits, value = heads(params, gru(params["gru"], rollout.x, h, rollout.is_new))
        ratio = jnp.exp(log_prob_of(logits, rollout.action) - rollout.log_prob)
        normal = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        clipped = jnp.clip(ratio, 1 - config.clip, 1 + config.clip)
        policy = -jnp.minimum(ratio * normal, clipped * normal).mean()
        entropy = -(jax.nn.softmax(logits) * jax.nn.log_softmax(logits)).sum(-1).mean()
        error = jnp.square(value - (advantage + rollout.value)).mean()
        return policy + 0.5 * error - config.entropy * entropy

    def minibatch(state: tuple[Params, Any], batch: Any) -> tuple[tuple[Params, Any], None]:
        params, optimizer_state = state
        gradients = jax.grad(loss)(params, *batch)
        changes, optimizer_state = optimizer.update(gradients, optimizer_state, params)
        return (optax.apply_updates(params, changes), optimizer_state), None

    def update(learner: Learner) -> tuple[Learner, Array]:
        h = learner.h
        learner, rollout = roll_out(config, learner)
        advantage = advantages(config, rollout)

        def epoch(carry: tuple[Any, Array], _: None) -> tuple[tuple[Any, Array], None]:
            state, key = carry
            key, shuffled = jax.random.split(key)
            order = jax.random.permutation(shuffled, config.environments).reshape(config.minibatches, -1)
            batches = jax.tree.map(lambda array: jnp.moveaxis(array[:, order], 1, 0), (rollout, advantage))
            state, _ = jax.lax.scan(minibatch, state, (h[order], *batches))
            return (state, key), None

        start = ((learner.params, learner.optimizer), learner.key)
        ((params, optimizer_state), key), _ = jax.lax.scan(epoch, start, None, config.epochs)
        right = rollout.reward.sum() / jnp.maximum(rollout.over.sum(), 1)
        return learner._replace(params=params, optimizer=optimizer_state, key=key), right

    return update


def make_optimizer(config: Config) -> Any:
    return optax.chain(optax.clip_by_global_norm(config.max_gradient), optax.adam(config.learning_rate))


def start(seed: int, config: Config) -> Learner:
    agent, episode, key = jax.random.split(jax.random.key(seed), 3)
    params = init_agent(agent, config)
    h = jnp.zeros((config.environments, config.hidden))
    return Learner(params, make_optimizer(config).init(params), begin(episode, config.environments), h, key)


def train(config: Config, kind: str, updates: int, seed: int) -> tuple[list[float], float]:
    """The share of right answers in each update, and the milliseconds that an update takes, of the last half."""
    update = jax.jit(make_update(config, GRUS[kind]), donate_argnums=0)
    learner, shares, times = start(seed, config), [], []
    for _ in range(updates):
        begun = time.perf_counter()
        learner, share = update(learner)
        shares.append(float(share))  # waits
        times.append(1e3 * (time.perf_counter() - begun))
    half = sorted(times[updates // 2 :])
    return shares, half[len(half) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--gru", choices=[*GRUS, "both"], default="prnn")
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    for name in ("environments", "steps", "hidden"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Config, name), help="%(default)s")
    options = parser.parse_args()
    if options.environments % Config.minibatches:
        parser.error(f"--environments is {options.environments}; it must be a multiple of {Config.minibatches}")
    config = Config(environments=options.environments, steps=options.steps, hidden=options.hidden)
    for kind in GRUS if options.gru == "both" else [options.gru]:
        shares, milliseconds = train(config, kind, options.updates, options.seed)
        rows = [f"{shares[index]:.2f}" for index in range(0, len(shares), max(1, len(shares) // 10))]
        print(f"{kind}: right answers {' '.join(rows)}, last {shares[-1]:.2f}; {milliseconds:.1f} ms an update")


if __name__ == "__main__":
    main()
