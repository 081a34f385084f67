"""What the training minimises: the answer's tokens, and helpers that tell the model early where to look.

The helpers know the truth of the drawing: which characters a patch shows, where the next character stands, which block
lies over a patch. Without them the model needs thousands of steps before it begins to read at all. They have their own
small heads, which are thrown away when the model is exported.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.reader import batched
from export.reader.curriculum import GLANCE
from export.reader.data import IGNORE, N_SLOTS, SLOT_CLASSES, Batch

POINTER_LAYERS = (2, 4)  # the first head of these decoder layers learns to look at the next character
PLACE_LAYER = 1
PLACE_RATES = (0.05, 0.15, 0.45, 1.35)  # radians a cell
N_MAP_CLASSES = 16
N_MAP_VALUES = 4
N_ORDERS = 48  # blocks of a page that are told apart by their place in reading order


class Helpers(nn.Module):
    """Heads of the auxiliary losses."""

    def __init__(self, embed_dim: int, hidden_size: int) -> None:
        super().__init__()
        self.slots = nn.Sequential(nn.LayerNorm(embed_dim), nn.Linear(embed_dim, N_SLOTS * SLOT_CLASSES))
        self.maps = nn.Sequential(nn.LayerNorm(embed_dim), nn.Linear(embed_dim, N_MAP_CLASSES + N_MAP_VALUES))
        self.place = nn.Sequential(nn.LayerNorm(hidden_size), nn.Linear(hidden_size, 4 * len(PLACE_RATES)))
        self.order = nn.Sequential(nn.LayerNorm(embed_dim), nn.Linear(embed_dim, N_ORDERS))


def place_code(xy: Tensor) -> Tensor:
    """Sines and cosines of positions in cells: (…, 2) to (…, 16)."""
    angles = xy[..., None] * torch.tensor(PLACE_RATES)
    return torch.cat((angles.sin(), angles.cos()), dim=-1).flatten(-2)


def losses(model: Any, helpers: Helpers, batch: Batch) -> dict[str, Tensor]:
    """All losses of a batch, each a mean, and what is only logged: shares of slots and answer tokens guessed right."""
    images = batch.images
    rows, columns = images.shape[1] // 28, images.shape[2] // 28
    features, patch_states = batched.encode_images(model, images)
    result: dict[str, Tensor] = {}
    if batch.kind != GLANCE:
        result = _decoder_losses(model, helpers, batch, features, rows, columns)
    if batch.slots is not None:
        slots = helpers.slots(patch_states).float().reshape(-1, SLOT_CLASSES)
        wanted = batch.slots.reshape(-1)
        weight = torch.where(wanted > 0, 1.0, 0.3)
        named = wanted > 0
        result["slots_right"] = (slots.detach()[named].argmax(-1) == wanted[named]).float().mean()
        result["slots"] = (functional.cross_entropy(slots, wanted, reduction="none") * weight).sum() / weight.sum()
    if batch.maps is not None:
        result["maps"] = _map_loss(helpers.maps(patch_states).float(), batch.maps)
        inside = batch.maps[..., 0] > 0
        order = helpers.order(patch_states).float()[inside]
        result["order"] = functional.cross_entropy(order, batch.maps[..., 5][inside].long().clamp(max=N_ORDERS - 1))
    return result


def _decoder_losses(
    model: Any, helpers: Helpers, batch: Batch, features: Tensor, rows: int, columns: int
) -> dict[str, Tensor]:
    embeds = batched.embed(model, batch.before, features, batch.after)
    n_before, n_image = len(batch.before), rows * columns
    position_ids = batched.positions(n_before, rows, columns, batch.after.shape[1])
    decoded = batched.decode(model, embeds, position_ids, watch=(PLACE_LAYER, *POINTER_LAYERS))
    learned = batch.labels != IGNORE
    states = decoded.states[:, n_before + n_image :][learned]
    logits = functional.linear(states, model.lm_head.weight).float()
    labels = batch.labels[learned]
    result = {"answer": functional.cross_entropy(logits, labels)}
    result["right"] = (logits.detach().argmax(-1) == labels).float().mean()
    result.update(_pointer_losses(helpers, decoded, batch, n_before, rows, columns))
    return result


def _pointer_losses(
    helpers: Helpers, decoded: batched.Decoded, batch: Batch, n_before: int, rows: int, columns: int
) -> dict[str, Tensor]:
    n_image = rows * columns
    known = torch.isfinite(batch.targets_xy[..., 0])
    xy = batch.targets_xy[known]
    if not len(xy):
        return {}
    cells = xy[:, 1].floor().clamp(0, rows - 1) * columns + xy[:, 0].floor().clamp(0, columns - 1)
    image = slice(n_before, n_before + n_image)
    result: dict[str, Tensor] = {}
    total = torch.zeros(())
    for layer in POINTER_LAYERS:
        scores = decoded.layer_scores[layer][:, n_before + n_image :, image][known].float()
        total = total + functional.cross_entropy(scores, cells.long()) / len(POINTER_LAYERS)
    result["pointer"] = total
    grid = torch.stack(torch.meshgrid(torch.arange(columns), torch.arange(rows), indexing="xy"), -1).reshape(-1, 2)
    own = helpers.place(decoded.layer_states[PLACE_LAYER][:, image]).float()
    result["place"] = (own - place_code(grid + 0.5)).square().mean()
    following = helpers.place(decoded.layer_states[POINTER_LAYERS[0]][:, n_before + n_image :][known]).float()
    result["place"] = result["place"] + (following - place_code(xy)).square().mean()
    return result


def _map_loss(predicted: Tensor, maps: Tensor) -> Tensor:
    """Class of the block over each patch, and how far its four edges are; maps: (B, P, 6), class 0 is paper."""
    classes = maps[..., 0].long()
    loss = functional.cross_entropy(predicted[..., :N_MAP_CLASSES].flatten(0, 1), classes.flatten())
    inside = classes > 0
    edges = (predicted[..., N_MAP_CLASSES:][inside] - maps[..., 1:5][inside]).abs().mean()
    return loss + edges if bool(inside.any()) else loss
