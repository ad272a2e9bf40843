"""The default trains every kind of module that plain PyTorch trains, and bilevel methods say what they cannot."""

from __future__ import annotations

import pickle
import types
import warnings
from collections import namedtuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

import calibrant
from calibrant.data.streams.batch import as_dtype, map_tensors
from calibrant.methods import BO4SC
from calibrant.models.functional.network import batch_format, call, logits_of
from calibrant.models.functional.user_modules import unwrapped

CLASSES = 3


def rows(n=48, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=generator)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def images(n, seed=0):
    x, y = rows(n, seed)
    return x.view(n, 1, 6, 1).expand(n, 2, 6, 6).contiguous(), y


def sequences(n, seed=0):
    x, y = rows(n, seed)
    return x.unsqueeze(-1).repeat(1, 1, 4), y


def padded(n, seed=0):
    x, y = sequences(n, seed)
    return {"x": x, "lengths": torch.arange(n) % 4 + 3}, y


def pair(n, seed=0):
    x, y = rows(n, seed)
    return (x, x.flip(1)), y


def mapping(n, seed=0):
    (left, right), y = pair(n, seed)
    return {"left": left, "right": right}, y


def tokens(n, seed=0):
    x, y = rows(n, seed)
    return (x.abs() * 3).long().clamp_max(8), y


def masked(n, seed=0):
    ids, y = tokens(n, seed)
    return {"input_ids": ids, "attention_mask": (ids > 0) | (torch.arange(6) == 0)}, y


class Packed(nn.Module):
    """Packed sequences, in both directions."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 8, num_layers=2, dropout=0.1, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(16, CLASSES)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.fc(pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0].sum(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.fc = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.fc(self.rnn(x)[0][:, -1])


class Cell(nn.Module):
    """A loop over time, from a learned start."""

    def __init__(self):
        super().__init__()
        self.cell, self.start, self.fc = nn.GRUCell(4, 8), nn.Parameter(torch.zeros(8)), nn.Linear(8, CLASSES)

    def forward(self, x):
        state = self.start.expand(len(x), -1)
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
        return self.fc(state)


class Encoder(nn.Module):
    """Padding masks, and an output object as those of Hugging Face."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 8, padding_idx=0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.body, self.fc = nn.TransformerEncoder(layer, 2), nn.Linear(8, CLASSES)

    def forward(self, input_ids, attention_mask):
        hidden = self.body(self.embed(input_ids), src_key_padding_mask=~attention_mask)
        return types.SimpleNamespace(loss=None, logits=self.fc(hidden.mean(1)))


class Causal(nn.Module):
    """A mask as a buffer that is not stored, and torch's fused attention."""

    def __init__(self):
        super().__init__()
        self.embed, self.attention = nn.Embedding(9, 8), nn.MultiheadAttention(8, 2, batch_first=True, dropout=0.1)
        self.norm, self.qkv, self.fc = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, CLASSES)
        self.register_buffer("mask", torch.triu(torch.ones(6, 6, dtype=torch.bool), 1), persistent=False)

    def forward(self, ids):
        hidden = self.embed(ids)
        hidden = self.norm(hidden + self.attention(hidden, hidden, hidden, attn_mask=self.mask)[0])
        return self.fc(F.scaled_dot_product_attention(*self.qkv(hidden).chunk(3, -1), is_causal=True)[:, -1])


class Bag(nn.Module):
    def __init__(self, **settings):
        super().__init__()
        self.embed, self.fc = nn.EmbeddingBag(9, 8, **settings), nn.Linear(8, CLASSES)

    def forward(self, ids):
        return self.fc(self.embed(ids))


class Tied(nn.Module):
    """The decoder has the weights of the embedding."""

    def __init__(self):
        super().__init__()
        self.embed, self.body, self.out = nn.Embedding(9, 8), nn.Linear(8, 8), nn.Linear(8, 9, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, ids):
        return self.out(torch.tanh(self.body(self.embed(ids).mean(1))))[:, :CLASSES]


class Unused(nn.Module):
    """Layers and parameters without gradient, and parameters in lists and mappings."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])
        self.spare = nn.ParameterList([nn.Parameter(torch.zeros(2))])
        self.scales = nn.ParameterDict({"first": nn.Parameter(torch.ones(6))})
        self.fc = nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.fc(self.layers[0](x * self.scales["first"]).relu_())


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True))
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, x):
        logits = self.fc(self.body(x))
        logits += 1
        logits[:, 0].mul_(1.5)
        return logits


class Counting(nn.Module):
    """Buffers that change in training, one in place and one by assignment."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, CLASSES)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("nothing", None)

    def forward(self, x):
        if self.training:
            self.steps += 1
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.fc(x - self.mean)


class Reentrant(nn.Module):
    """Gradient checkpointing in torch's older form."""

    def __init__(self, reentrant=True):
        super().__init__()
        self.reentrant = reentrant
        self.first, self.body, self.fc = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)

    def forward(self, x):
        hidden = self.first(x)
        hidden = checkpoint(self.body, hidden, use_reentrant=self.reentrant) if self.training else self.body(hidden)
        return self.fc(hidden.relu())


class Odd(nn.Module):
    """A parameter without dimensions, one with turned strides, two of one storage, and stochastic depth."""

    def __init__(self):
        super().__init__()
        pair = 0.3 * torch.randn(2, 6, 6)
        self.first, self.second = nn.Parameter(pair[0]), nn.Parameter(pair[1])
        self.scale, self.last = nn.Parameter(torch.tensor(0.1)), nn.Parameter(0.1 * torch.randn(CLASSES, 6).t())

    def forward(self, x):
        if not self.training or torch.rand(()) < 0.8:
            x = x + F.dropout((x @ self.first).tanh(), 0.1, self.training)
        return (x @ self.second @ self.last) * self.scale.exp()


class Output(nn.Module):
    """Several forms of outputs."""

    def __init__(self, form):
        super().__init__()
        self.fc, self.form = nn.Linear(6, CLASSES), form

    def forward(self, x):
        return FORMS[self.form](self.fc(x), x)


Named = namedtuple("Named", "loss logits")
FORMS = {
    "dict": lambda z, x: {"features": x, "count": 3, "nothing": None, "logits": z},
    "tuple": lambda z, x: (z, x, None),
    "named tuple": lambda z, x: Named(None, z),
}


class Frozen(nn.Module):
    """A frozen body in half precision, with BatchNorm in evaluation mode."""

    def __init__(self):
        super().__init__()
        self.body, self.norm = nn.Linear(6, 8).bfloat16().requires_grad_(False), nn.BatchNorm1d(8).eval()
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, x):
        with torch.no_grad():
            hidden = self.body(x.bfloat16()).float()
        return self.fc(self.norm(hidden).relu())


class Quantised(nn.Module):
    def __init__(self):
        super().__init__()
        weight = torch.randint(-9, 9, (8, 6), dtype=torch.int8)
        self.weight, self.fc = nn.Parameter(weight, requires_grad=False), nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.fc(x @ self.weight.float().t() / 9)


class Inner(nn.Module):
    """A gradient and a vectorised map inside the forward pass."""

    def __init__(self):
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, CLASSES))

    def forward(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            slope = torch.autograd.grad(self.energy(x).square().sum(), x, create_graph=True)[0]
        return torch.func.vmap(self.energy)(x) + slope[:, :CLASSES]


class Listed(nn.Module):
    """Calls its layers by an ordinary list."""

    def __init__(self):
        super().__init__()
        self.body, self.fc = nn.Linear(6, 6), nn.Linear(6, CLASSES)
        self.order = [self.body, self.fc]

    def forward(self, x):
        for layer in self.order:
            x = layer(x)
        return x


class Two(nn.Module):
    """Two inputs."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.fc = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(8, CLASSES)

    def forward(self, left, right):
        return self.fc(torch.cat([self.a(left), self.b(right)], 1).tanh())


class OneTuple(Two):
    """One argument, which is a tuple."""

    def forward(self, pair):
        return super().forward(*pair)


class OneMapping(Two):
    """One argument, which is a mapping; a further one has a default."""

    def forward(self, batch, scale=1.0):
        return super().forward(batch["left"], batch["right"]) * scale


class Caching(nn.Module):
    """Keeps activations of the last call, with their graph."""

    def __init__(self):
        super().__init__()
        self.body, self.fc = nn.Linear(6, 8), nn.Linear(8, CLASSES)
        self(torch.zeros(2, 6))

    def forward(self, x):
        self.last = F.relu(self.body(x))
        self.kept = {"features": [self.last]}
        return self.fc(self.last)


class Clamp(torch.autograd.Function):
    """An operation without a rule for vmap."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp_min(0)

    @staticmethod
    def backward(ctx, slope):
        return slope * (ctx.saved_tensors[0] > 0)


class OwnFunction(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.fc = nn.Linear(6, 8), nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.fc(Clamp.apply(self.body(x)))


class Flow(nn.Module):
    """Control flow that depends on values."""

    def __init__(self):
        super().__init__()
        self.net = perceptron()

    def forward(self, x):
        return self.net(x) if self.net[0].weight.abs().sum() > 0 else x[:, :CLASSES]


class SparseTokens(nn.Module):
    """An embedding with sparse gradients."""

    def __init__(self):
        super().__init__()
        self.embed, self.fc = nn.Embedding(9, 8, sparse=True), nn.Linear(8, CLASSES)

    def forward(self, ids):
        return self.fc(self.embed(ids).mean(1))


class AnyArguments(Two):
    """Takes any arguments."""

    def forward(*inputs, **named):
        return Two.forward(*inputs, **named)


def perceptron(classes=CLASSES):
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, classes))


def hooked():
    net = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, CLASSES))
    net[0].register_forward_hook(lambda layer, inputs, output: output.tanh())
    net[1].register_forward_pre_hook(lambda layer, inputs: (2 * inputs[0],))
    return net


def pruned():
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, CLASSES))
    prune.random_unstructured(net[0], "weight", 0.3)
    return net


def lazy(called=True):
    net = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(CLASSES))
    if called:
        net(torch.randn(2, 2, 6, 6))
    return net


def conv(norm=None):
    norm = nn.BatchNorm2d(4) if norm is None else norm
    return nn.Sequential(nn.Conv2d(2, 4, 3), norm, nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, CLASSES))


def parametrised(kind):
    return nn.Sequential(kind(nn.Linear(6, 6)), nn.Linear(6, CLASSES))


def old_weight_norm():
    with pytest.warns(FutureWarning, match="weight_norm"):
        first = nn.utils.weight_norm(nn.Linear(6, 8))
    return nn.Sequential(first, nn.ReLU(), nn.utils.spectral_norm(nn.Linear(8, CLASSES)))


def new_weight_norm():
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, CLASSES))


KINDS = {
    "BatchNorm": (conv, images),
    "BatchNorm without momentum": (lambda: conv(nn.BatchNorm2d(4, momentum=None)), images),
    "BatchNorm without statistics": (lambda: conv(nn.BatchNorm2d(4, track_running_stats=False)), images),
    "SyncBatchNorm": (lambda: nn.SyncBatchNorm.convert_sync_batchnorm(conv()), images),
    "InstanceNorm": (lambda: conv(nn.InstanceNorm2d(4, affine=True, track_running_stats=True)), images),
    "GroupNorm": (lambda: conv(nn.GroupNorm(2, 4)), images),
    "channels last": (lambda: conv().to(memory_format=torch.channels_last), images),
    "lazy layers after a call": (lazy, images),
    "packed sequences": (Packed, padded),
    "LSTM": (Recurrent, sequences),
    "cell": (Cell, sequences),
    "padding mask": (Encoder, masked),
    "causal attention": (Causal, tokens),
    "bag": (Bag, tokens),
    "sparse bag": (lambda: Bag(sparse=True), tokens),
    "tied weights": (Tied, tokens),
    "unused parameters": (Unused, rows),
    "in place": (InPlace, rows),
    "buffers that change": (Counting, rows),
    "reentrant checkpointing": (Reentrant, rows),
    "orthogonal": (lambda: parametrised(parametrizations.orthogonal), rows),
    "spectral norm": (lambda: parametrised(parametrizations.spectral_norm), rows),
    "odd parameters": (Odd, rows),
    **{form: (lambda form=form: Output(form), rows) for form in FORMS},
    "frozen body": (Frozen, rows),
    "integer weights": (Quantised, rows),
    "hooks": (hooked, rows),
    "gradient inside": (Inner, rows),
    "list of layers": (Listed, rows),
    "pruned": (pruned, rows),
    "evaluation mode": (lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, CLASSES)).eval(), rows),
    "traced by fx": (lambda: torch.fx.symbolic_trace(nn.Sequential(nn.Linear(6, 8), nn.Linear(8, CLASSES))), rows),
    "float64": (lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1), nn.Linear(8, CLASSES)).double(), rows),
    "LSTM in bfloat16": (lambda: Recurrent().bfloat16(), sequences),
    "attention in bfloat16": (lambda: Causal().bfloat16(), tokens),
    "BatchNorm in bfloat16": (lambda: conv().bfloat16(), images),
    "DataParallel": (lambda: nn.DataParallel(perceptron()), rows),
    "torch.compile": (lambda: torch.compile(perceptron(), backend="eager"), rows),
    "two inputs in a wrapper": (lambda: nn.DataParallel(Two()), pair),
    "one tuple": (OneTuple, pair),
    "one mapping": (OneMapping, mapping),
    "any arguments": (AnyArguments, mapping),
    "cached activations": (Caching, rows),
    "gradient checkpointing": (lambda: Reentrant(False), rows),
    "own function": (OwnFunction, rows),
    "control flow": (Flow, rows),
    "sparse embedding": (SparseTokens, tokens),
    "old weight norm": (old_weight_norm, rows),
    "new weight norm": (new_weight_norm, rows),
    "bfloat16": (lambda: perceptron().bfloat16(), rows),
}  # fmt: skip

NOT_PICKLED = ("hooks", "orthogonal", "spectral norm", "old weight norm", "new weight norm")
"""Hooks that are local functions, and parametrised layers."""


def built(case):
    torch.manual_seed(0)
    make, draw = KINDS[case]
    return make(), draw


class Items(Dataset):
    """The samples of data in memory, one at a time."""

    def __init__(self, data):
        self.inputs, self.labels = data

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, row):
        inputs = map_tensors(lambda t: t[row], self.inputs)
        if isinstance(inputs, dict):
            return inputs | {"labels": self.labels[row]}
        return inputs, self.labels[row]


def state(model):
    """Everything that ``fit`` must leave as it is."""
    values = {k: v.clone() for k, v in model.state_dict().items()}
    modes = [(m.training, len(m._forward_hooks)) for m in model.modules()]
    return values, modes, [p.requires_grad for p in model.parameters()], torch.get_rng_state()


FEW = ("two inputs in a wrapper", "one tuple", "one mapping", "own function", "old weight norm", "bfloat16")
"""Modules that are trained on folds and by loaders, too."""


@pytest.mark.filterwarnings("ignore:The network is at chance level", "ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize(
    ("case", "how"), [*((case, "one") for case in KINDS), *((case, how) for case in FEW for how in ("folds", "loader"))]
)
def test_a_module_is_trained_saved_and_exported(case, how, tmp_path):
    net, draw = built(case)
    before, train, val, inputs = state(net), draw(60), draw(40, 1), draw(20, 2)[0]
    if how == "loader":
        train, val = DataLoader(Items(train), 16), DataLoader(Items(val), 16)
    result = calibrant.fit(net, train, val, epochs=2, networks=1 if how == "one" else None)
    after = state(net)
    assert all(torch.equal(values, after[0][name]) for name, values in before[0].items())
    assert before[1:3] == after[1:3]
    assert torch.equal(before[3], after[3])

    probs = result.probs(inputs)
    assert probs.shape == (20, CLASSES)
    torch.testing.assert_close(result.probs(DataLoader(Items((inputs, torch.zeros(20).long())), 20)), probs)
    start = dict(unwrapped(net).named_parameters())
    moved = {name for name, p in result.modules[0].named_parameters() if not torch.equal(p, start[name])}
    assert moved
    assert moved <= {name for name, p in start.items() if p.requires_grad}
    low = "bfloat16" in case
    given = batch_format(result.modules[0]).arguments(inputs) if isinstance(inputs, tuple) else inputs
    if case not in ("integer weights", "frozen body"):
        given = as_dtype(given, next(result.modules[0].parameters()).dtype)
    with torch.no_grad():
        logits = logits_of(call(result.module, given))
    torch.testing.assert_close(logits.double().softmax(1), probs, atol=0.03 if low else 1e-4, rtol=0)
    result.save(tmp_path / "net")
    again = calibrant.Trained.load(tmp_path / "net", built(case)[0])
    torch.testing.assert_close(again.probs(inputs), probs, atol=0.03 if low else 1e-7, rtol=0)
    if case not in NOT_PICKLED:
        assert torch.equal(pickle.loads(pickle.dumps(result)).probs(inputs), probs)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_both_forms_of_checkpointing_train_alike():
    probs = []
    for reentrant in (True, False):
        torch.manual_seed(0)
        result = calibrant.fit(Reentrant(reentrant), rows(60), rows(40, 1), epochs=20, networks=1)
        probs.append(result.probs(rows(20, 2)[0]))
    torch.testing.assert_close(*probs)


SENTENCES = {
    **dict.fromkeys(
        ("bag", "sparse bag"),
        (BO4SC(steps=2, epochs=2), NotImplementedError, "embedding_bag, which has no second derivative"),
    ),
    **dict.fromkeys(
        ("reentrant checkpointing", "gradient checkpointing"),
        (BO4SC(steps=2, epochs=2), ValueError, "Gradient checkpointing cannot be combined with BO4SC"),
    ),
    "own function": ("self-calibrated", ValueError, r"trains its networks together.*setup_context.*Use another method"),
    "tied weights": ("flg-sece", ValueError, "The head could not be found"),
    "list of layers": ("flg-sece", ValueError, "'fc' must be called through the network's attribute 'fc'"),
}


@pytest.mark.parametrize("case", KINDS)
def test_a_bilevel_method_trains_a_module_or_says_why_not(case):
    net, draw = built(case)
    method, kind, sentence = SENTENCES.get(case, (BO4SC(steps=2, epochs=2), None, ""))
    settings = {"learning_rate": 0.01, "epochs": 2} if method == "flg-sece" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind is None:
            result = calibrant.fit(net, draw(60), draw(40, 1), method=method, **settings)
            assert result.probs(draw(20, 2)[0]).isfinite().all()
            return
        with pytest.raises(kind, match=sentence):
            calibrant.fit(net, draw(60), draw(40, 1), method=method, **settings)
