"""Who speaks in the digits recipe: espeak-ng voice variants, divided so that no test speaker is heard in training.

A speaker is a variant, spoken in any of the accents. The variants of DEV and TEST were chosen so that their definition
files share less than half of their lines with that of any training variant (many of espeak-ng's variants are small
edits of one another); tests/test_digits_recipe.py checks it. Left out on both sides are the variants that are no
person: robots, whispers, monsters.
"""

# fmt: off
ACCENTS = (
    "en", "en-029", "en-gb-scotland", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-gb-x-rp", "en-us", "en-us-nyc",
)
# fmt: on

TEST = ("Alicia", "Annie", "Marco", "ed", "f3", "grandma", "m4", "paul", "quincy", "travis", "victor", "zac")

DEV = ("boris", "f1", "m3", "marcelo")

# fmt: off
TRAIN = (
    "Alex", "Andrea", "Andy", "AnxiousAndy", "Denis", "Diogo", "Gene", "Gene2", "Henrique", "Hugo", "Jacky",
    "Lee", "Mario", "Michael", "Mike", "Mr serious", "Nguyen", "Reed", "RicishayMax", "RicishayMax2",
    "RicishayMax3", "Storm", "Tweaky", "adam", "anika", "announcer", "antonio", "aunty", "belinda", "benjamin",
    "caleb", "david", "edward", "edward2", "f2", "f4", "f5", "grandpa", "gustave", "ian", "iven", "iven2",
    "iven3", "iven4", "john", "klatt3", "klatt4", "klatt5", "klatt6", "linda", "m1", "m2", "m5", "m6", "m7",
    "m8", "max", "michel", "miguel", "mike2", "norbert", "pablo", "pedro", "rob", "robert", "sandro", "shelby",
    "steph", "steph2", "steph3",
)
# fmt: on

SPEAKERS = {"train": TRAIN, "dev": DEV, "test": TEST}
