"""What the report on the first paper says in words: choices, baselines, and what the printed comparison hides.

Where a sentence needs a measured number, it has a place for it, which the page fills from the records.
"""

from __future__ import annotations

LEFT_OPEN: tuple[tuple[str, str], ...] = (
    (
        "blobs: centres and seed",
        "centres drawn uniformly from [−10, 10]² with a fixed seed that gives the paper's level of accuracy",
    ),
    (
        "spirals: the generator",
        "angle 2π√u, radius ±(2·angle + π), Gaussian noise on each axis: the one that fits the printed accuracies",
    ),
    (
        "BAC: the sample",
        "simulated by the formula of the public set; class 1 above 0.08; labels are a function of the features",
    ),
    ("runs", "the paper prints one; here every seed has fresh samples and a fresh network"),
    ("number of bins M", "10 and 15; the comparison with the printed figures uses 10"),
    ("inner optimiser", "Adam, as Section 4 says; Algorithm 1 prints plain descent"),
    ("range of the weights", "clipped to [0, 1] after each outer step, read off Fig. 3"),
    ("initial weights", "1: training begins as the standard one"),
    ("θ between outer steps", "carried over: after a restart, T steps alone would have to train the network"),
    ("Eq. (11), “logit”", "read as the probability: the Boltzmann operator is applied to softmax outputs"),
    ("Eq. (13), “positive class”", "read as “classified correctly”, and held fixed when differentiating"),
    (
        "T, η_w, α, width, epochs, learning rate",
        "one setting for each set, listed below with where it comes from",
    ),
    (
        "Standard's epochs and learning rate",
        "1,200 epochs of Adam at 0.02, which reproduces the printed calibration error: see the last section",
    ),
)

BASELINES: dict[str, str] = {
    "standard": "The paper's row. Trained to the end, as its figures suggest; no validation data are used.",
    "standard-stopped": "The same network returned to its best validation loss: what a careful user would take.",
    "isotonic": "The paper's rival: isotonic regression of “was it right” on the confidence, fitted on the 300 "
    "validation samples behind the standard network. Confidence may fall below 1/C and is reported so.",
    "temperature": "The most used calibrator, one number fitted by NLL on the 300, behind the standard network.",
    "isotonic-stopped": "The paper's rival behind the stopped network, which leaves it less to mend.",
    "temperature-stopped": "Temperature scaling behind the stopped network, whose validation loss is least already.",
    "label-smoothing": "ε = 0.05, stopped at the best validation loss, because training to the end would handicap it.",
    "focal": "γ = 1, stopped at the best validation loss, for the same reason.",
    "ensemble": "The mean of five stopped networks. The targets except it by name: it is shown, with its paired "
    "differences, and not ranked. Self-calibrated, which is ranked, is a mean of networks too.",
    "instance-weights": "The earlier bilevel method for confidence, after Jain & Shenoy (2022) as their abstract has "
    "it: weights come from a small network of the input, moved by the validation NLL and the variance of five passes "
    "with dropout. How the two are put together, and all settings, are our choice.",
    "standard-matched": "The control for bo4sc: standard training with bo4sc's own network, epochs and learning rate, "
    "so that the two differ by the weights alone.",
    "bo4sc": "Algorithm 1 with a setting for each set; where these come from is said above.",
    "self-calibrated": "One setting for all sets. Ten networks (five folds, dealt twice), each trained on four fifths "
    "of the 1,000 training and validation samples together, where the baselines train on 700 and keep 300.",
}

SEEN = frozenset({*range(20), *range(500, 508), *range(700, 740)})
"""Seeds of the synthetic sets that were met while the methods were made; how is said below."""
FURTHER = "results/bo4sc-more-seeds.json"
"""All methods on seeds that were not."""

UNEQUAL = """
The methods do not cost the same, nor learn from the same labels. Self-calibrated is ten networks (five folds, dealt
twice), the ensemble is five, every other method of ours is one. Self-calibrated takes training and validation part as
one sample, so that each label trains some of its networks; of the baselines, none trains on the validation part, which
stops, calibrates or moves outer variables. What the larger sample and the averaging are worth is in the ablation
(`calibrant ablate bo4sc`: without refit, one of its networks). The ensemble is not ranked because the targets, set
beforehand, except it by name, and for no other reason.
"""

UNEQUAL_PEERS = """
On a table that is 80 % of the labels for training, less the fold that a network is blind to, against 60 % for training
and 20 % for validation. Rivals from other libraries are given the same 80 % as self-calibrated is:
CalibratedClassifierCV is five classifiers, each blind to one fold; without it there is one. All methods get the same
columns, as the table's encoder gives them: categories as indicators, numbers scaled. What CatBoost and RealMLP could do
with categories as such is not measured.
"""

FLOORS = """
The two targets on ECE-15 set a number against a sample, and 1,000 test samples have an ECE-15 of their own. The exact
posterior's is one draw of it a seed; the mean over draws of labels from the method's own confidences, as a perfectly
calibrated method would have them, is steadier. Where the interval holds the limit, so many seeds do not decide, and the
verdict is the mean's alone. A hundred further seeds, which nothing had been tried on, are run by `calibrant reproduce
bo4sc --seeds 100 --first-seed 1000`: results/bo4sc-more-seeds.json. Where labels have no noise, a limit below what
calibrated confidences score could be met only by a classifier that is right more often.
"""

DEFAULTS = """
How self-calibrated came to its defaults: settings were tried on the five synthetic sets with seeds 500 to 507 and 700
to 739, so that the samples are others than those of the seeds 0 to 19, which the targets are judged on, and the
distributions the same. The judged seeds were seen by earlier versions, too: what they missed on bac and on spirals-2.5
led to a search for the cause on the seeds 700 to 739, and to folds dealt twice, mean logits and the lapse rate. That
way of combining networks, with a temperature and biases, was also tried on development splits, seeds from 100 on, of
eight tables: heart_statlog, pima, credit_g, vehicle, magic, adult, letter and satimage. A table is one fixed sample:
rows of those splits also occur in the reported ones, and on these tables the comparison is not blind; the report on
tables shows the others beside it. Earlier versions were also measured on reported splits of some of those others. The
settings of the trees and the prior of the pool were chosen on the training parts of the same eight tables, seeds from
1000 on, by the loss on a quarter of those parts that was left out. One choice was not blind: the spread of the pool's
prior was set back from 1.0 to 0.5 after reported splits of heart_statlog and of wine_quality_red, which is not one of
the eight, had been seen. On development data the two values could not be told apart.
"""

HIDDEN = """
The printed comparison is against a network trained long past its best. Stopping the same network at its best
validation loss costs nothing, and uses no more than the 300 samples that BO4SC and isotonic regression use too: it
takes ECE-10, in the mean over the sets, from {standard} to {stopped}, where BO4SC has {bo4sc}. A gain over Standard
alone therefore says little; the comparisons that count are with the stopped networks.

Standard also differs from BO4SC in its learning rate, which was set to reach the printed error. Standard-matched has
BO4SC's own learning rate, epochs and network, and an ECE-10 of {matched} in the mean over the sets, where BO4SC has
{bo4sc}: the two differ by the weights alone. Beside the control's, paired by seed, BO4SC's ECE-10 is {weights}.

Temperature scaling is handicapped in the same way. It stands behind the over-trained network, whose rare validation
errors are made with enormous confidence; the temperature of least NLL must pay for these few, and can leave all others
under-confident (confidence less accuracy is in the folded tables). What it does for a stopped network is the row
temperature-stopped.

A finite test sample has a noise floor. On 1,000 samples even the exact posterior scores an ECE well above zero, because
the accuracy of a bin of n samples scatters by about 1/√n. Differences below that floor are not visible in one run; they
are in the mean over seeds, paired, and in the true ECE, which compares confidence with the exact posterior on 20,000
further samples, the same for all, and has next to none.

ECE also rewards knowing nothing: a model that always says the base rate is calibrated. Log-likelihood and the mean
distance of confidence and truth stand beside it for that reason.
"""
