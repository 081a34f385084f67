"""The reader's own forward pass, tokenizer and checkpoint against Transformers and the handler."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoTokenizer, Qwen2VLForConditionalGeneration

from export import fidelity, source
from export.reader import batched, data, model
from export.reader.draw import Sample
from handler.image import prepare
from handler.prompt import Prompter

ROWS, COLUMNS = 2, 5


@pytest.fixture(scope="module")
def reader():
    return model.build_model(0).eval()


@pytest.fixture(scope="module")
def encoder():
    return data.Encoder()


def samples(n: int = 3) -> list[Sample]:
    random = np.random.default_rng(0)
    answers = ("Ab", "a longer answer, é", "12")
    return [
        Sample(
            random.integers(0, 256, (ROWS * 28, COLUMNS * 28, 3), dtype=np.uint8),
            answer,
            random.uniform(0, 56, (len(answer), 2)).astype(np.float32),
        )
        for answer in answers[:n]
    ]


@pytest.fixture(scope="module")
def checkpoint(reader, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reader") / "checkpoint"
    model.write_checkpoint(dict(reader.named_parameters()), folder, {"steps": 0}, torch.float32)
    return folder


@torch.no_grad()
def test_batched_vision_forward_is_transformers_own(reader, encoder, checkpoint):
    info = source.image_info(source.resolve(str(checkpoint), None))
    prepared = [prepare(Image.fromarray(sample.image), info) for sample in samples()]
    theirs = reader.model.visual(
        torch.from_numpy(np.concatenate([one.pixel_values for one in prepared])),
        grid_thw=torch.tensor([one.image_grid_thw for one in prepared]),
    )
    ours, states = batched.encode_images(reader, encoder.batch("line", samples()).images)
    assert states.shape == (3, ROWS * COLUMNS * 4, model.VISION["embed_dim"])
    torch.testing.assert_close(ours, theirs.reshape(ours.shape), atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_batched_decoder_forward_is_transformers_own(reader, encoder, checkpoint):
    info = source.image_info(source.resolve(str(checkpoint), None))
    prepared = [prepare(Image.fromarray(sample.image), info) for sample in samples()]
    batch = encoder.batch("line", samples())
    n_image = ROWS * COLUMNS
    ids = torch.cat(
        [batch.before.expand(3, -1), torch.full((3, n_image), reader.config.image_token_id), batch.after], 1
    )
    theirs = reader(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        pixel_values=torch.from_numpy(np.concatenate([one.pixel_values for one in prepared])),
        image_grid_thw=torch.tensor([one.image_grid_thw for one in prepared]),
    ).logits
    features, _ = batched.encode_images(reader, batch.images)
    embeds = batched.embed(reader, batch.before, features, batch.after)
    places = batched.positions(len(batch.before), ROWS, COLUMNS, batch.after.shape[1])
    ours = reader.lm_head(batched.decode(reader, embeds, places).states)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)


def test_batched_generation_is_transformers_own(reader, encoder, checkpoint):
    images = encoder.batch("line", samples()).images
    prompt = torch.tensor(encoder.after(model.PROMPTS["text"]))
    ours = batched.generate(reader, images, encoder.before, prompt, encoder.stop, fidelity.N_TOKENS)
    found = source.resolve(str(checkpoint), None)
    for tokens, image in zip(ours, images):
        sample = fidelity.transformers_sample(reader, found, Image.fromarray(image.numpy()))
        assert tokens == sample.token_ids


def test_checkpoint_is_read_by_transformers_and_says_that_it_is_trained(reader, checkpoint):
    loaded, report = Qwen2VLForConditionalGeneration.from_pretrained(checkpoint, output_loading_info=True)
    assert set(report["missing_keys"]) <= {"lm_head.weight"}
    assert not report["unexpected_keys"]
    for (name, ours), (_, theirs) in zip(reader.named_parameters(), loaded.named_parameters()):
        assert torch.equal(ours, theirs), name
    found = source.resolve(str(checkpoint), None)
    assert source.model_info(found, 0).trained
    assert source.image_info(found).layout_size_px == [448, 448]
    assert 3e6 < sum(p.numel() for p in loaded.parameters()) < 8e6


@pytest.mark.parametrize("kind", sorted(model.PROMPTS))
def test_training_prompt_is_the_handlers_prompt(encoder, checkpoint, kind):
    found = source.resolve(str(checkpoint), None)
    prompter = Prompter(checkpoint, fidelity._partial_manifest(found))
    tokens = prompter.tokenize(model.PROMPTS[kind], (2, 2))
    image_pad = encoder.ids("<|image_pad|>")
    wanted = [*encoder.before.tolist(), *image_pad, *encoder.after(model.PROMPTS[kind])]
    assert tokens.input_ids.tolist() == wanted
    assert len(wanted) < 24  # the whole strings of the template are one token each


def test_tokenizer_gives_back_what_it_took(encoder):
    text = "Title é — “x” <|box_start|>001 002 003 004<|box_end|>\n<fcel>a b<ecel><nl> \\frac{a}{b} 10 €"
    assert encoder.tokenizer.decode(encoder.ids(text), skip_special_tokens=False) == text


def test_tokenizer_fits_the_table_and_is_read_by_transformers(encoder, checkpoint):
    assert encoder.tokenizer.get_vocab_size() <= model.VOCABULARY_SIZE
    theirs = AutoTokenizer.from_pretrained(checkpoint)
    text = model.BEFORE_IMAGE + model.PROMPTS["text"]
    assert theirs(text, add_special_tokens=False)["input_ids"] == encoder.ids(text)


def test_batch_shifts_labels_by_one_and_learns_answers_only(encoder):
    batch = encoder.batch("line", samples())
    n_prompt = len(encoder.after(model.PROMPTS["text"]))
    for row, sample in enumerate(samples()):
        ids = [*encoder.ids(sample.answer), encoder.stop]
        learned = batch.labels[row] != data.IGNORE
        assert batch.labels[row][learned].tolist() == ids
        assert int(learned.nonzero()[0]) == n_prompt - 1
        first = torch.from_numpy(sample.positions[0] / 28)
        torch.testing.assert_close(batch.targets_xy[row, n_prompt - 1], first)
        assert torch.isnan(batch.targets_xy[row, n_prompt - 2 + len(ids)]).all()  # the stop stands nowhere


def test_patch_slots_follow_the_processors_order():
    image = np.zeros((28, 56, 3), dtype=np.uint8)
    sample = Sample(image, "abc d", np.array([[3, 3], [20, 3], [26, 3], [np.nan, np.nan], [30, 20]], dtype=np.float32))
    slots = data.patch_slots(sample)
    a, b, c, d = (data._CLASS[character] for character in "abcd")
    assert slots.tolist() == [[a, 0, 0], [b, c, 0], [0] * 3, [0] * 3, [0] * 3, [0] * 3, [d, 0, 0], [0] * 3]
