"""Who speaks in the digits recipe: espeak-ng voice variants, divided so that no test speaker is heard in training.

A speaker is a variant, spoken in any of the accents. Two rules hold for the variants of DEV and TEST, which
tests/test_digits_recipe.py checks against espeak-ng's own files:
- Their definition shares less than half of its lines with that of any training variant, since many variants are small
  edits of one another.
- Their first two formants lie between 75 % and 135 % of those of espeak-ng's own voice, as people's do; cartoon voices
  are in TRAIN only.
Left out on all sides are the variants that are no voice at all: robots, whispers, monsters.
"""

# fmt: off
ACCENTS = (
    "en", "en-029", "en-gb-scotland", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-gb-x-rp", "en-us", "en-us-nyc",
)
# fmt: on

TEST = ("Andrea", "Annie", "Marco", "ed", "f3", "grandma", "m2", "m4", "paul", "quincy", "sandro", "victor")

DEV = ("boris", "f1", "m3", "marcelo")

# fmt: off
TRAIN = (
    "Alex", "Alicia", "Andy", "AnxiousAndy", "Denis", "Diogo", "Gene", "Gene2", "Henrique", "Hugo", "Jacky", "Lee",
    "Mario", "Michael", "Mike", "Mr serious", "Nguyen", "Reed", "RicishayMax", "RicishayMax2", "RicishayMax3",
    "Storm", "Tweaky", "adam", "anika", "announcer", "antonio", "aunty", "belinda", "benjamin", "caleb", "david",
    "edward", "edward2", "f2", "f4", "f5", "grandpa", "gustave", "ian", "iven", "iven2", "iven3", "iven4", "john",
    "klatt3", "klatt4", "klatt5", "klatt6", "linda", "m1", "m5", "m6", "m7", "m8", "max", "michel", "miguel",
    "mike2", "norbert", "pablo", "pedro", "rob", "robert", "shelby", "steph", "steph2", "steph3", "travis", "zac",
)
# fmt: on

SPEAKERS = {"train": TRAIN, "dev": DEV, "test": TEST}
