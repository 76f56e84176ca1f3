"""English surfaces, checked by hand."""


import pytest

from town.corpus import en
from town.corpus.meaning import Clause as C
from town.corpus.meaning import Entity as E
from town.corpus.meaning import Gap, Piece, Place, Sentence, paraphrases

ANNA, BEN, DOCTOR = E("Anna"), E("Ben"), E("doctor")
HE, SHE, THEY = E("man", pronoun=True), E("woman", pronoun=True), E("man", 2, pronoun=True)


def accepted(meaning, most=5000):
    sentence = meaning if isinstance(meaning, Sentence) else Sentence(meaning)
    return list(paraphrases(lambda pick: en.join(en.pieces(sentence, pick)), most))


RIGHT = [
    (C("buy", ANNA, E("bread", definite=False)), "Anna bought bread."),
    (C("buy", ANNA, E("apple", definite=False)), "Anna bought an apple."),
    (C("buy", ANNA, E("apple", 3, True, False)), "Anna bought three apples."),
    (C("buy", ANNA, E("apple", 14, True, False)), "Anna bought 14 apples."),
    (C("have", ANNA, E("apple", 1, True, False), tense="present"), "Anna has one apple."),
    (C("buy", ANNA, E("apple", definite=False), negated=True), "Anna did not buy an apple."),
    (C("buy", ANNA, E("apple", 2, definite=False), negated=True), "Anna didn't buy any apples."),
    (C("read", E("child", 2), E("book"), tense="present"), "The children are reading the book."),
    (C("sing", E("child"), tense="present", adverb="often"), "The child often sings."),
    (C("carry", E("boy"), E("box", 2), tense="present"), "The boy carries the boxes."),
    (C("be", E("we"), complement="tired", tense="present"), "We are tired."),
    (C("be", E("i"), complement="happy", tense="present", negated=True), "I am not happy."),
    (C("be", E("soup"), complement="warm"), "The soup was warm."),
    (C("be_at", E("book"), place=Place("kitchen"), tense="present"), "The book is in the kitchen."),
    (C("be_at", ANNA, place=Place("bridge")), "Anna was on the bridge."),
    (C("be_at", ANNA, place=Place("river"), tense="future"), "Anna will be by the river."),
    (C("give", ANNA, E("book", definite=False), DOCTOR), "Anna gave the doctor a book."),
    (C("give", ANNA, E("book", definite=False), DOCTOR), "Anna gave a book to the doctor."),
    (C("give", ANNA, E("book", pronoun=True), DOCTOR), "Anna gave it to the doctor."),
    (C("show", ANNA, E("map"), E("i")), "Anna showed me the map."),
    (C("pick_up", ANNA, BEN, place=Place("station", "from")), "Anna picked Ben up from the station."),
    (C("pick_up", ANNA, BEN), "Anna picked up Ben."),
    (C("pick_up", ANNA, HE), "Anna picked him up."),
    (C("look_for", ANNA, E("key", owner=SHE)), "Anna looked for her key."),
    (C("get_up", ANNA, tense="present", time="every_day"), "Anna gets up every day."),
    (C("come_back", ANNA, place=Place("city", "from"), tense="future"), "Anna will come back from the city."),
    (C("go", ANNA, place=Place("market", "to"), time="yesterday"), "Anna went to the market yesterday."),
    (C("go", ANNA, place=Place("market", "to"), time="yesterday", front="time"), "Yesterday Anna went to the market."),
    (C("arrive", ANNA, place=Place("city")), "Anna arrived in the city."),
    (C("arrive", ANNA, place=Place("hotel")), "Anna arrived at the hotel."),
    (C("sing", ANNA, place=Place("garden"), front="place"), "In the garden Anna sang."),
    (C("sleep", ANNA, place=Place("park", definite=False, adjective="old")), "Anna slept in an old park."),
    (C("wait", ANNA, place=Place("school", "in_front_of")), "Anna waited in front of the school."),
    (C("open", ANNA, E("door"), adverb="carefully"), "Anna carefully opened the door."),
    (C("open", ANNA, E("door"), adverb="carefully", tense="future"), "Anna will open the door carefully."),
    (C("buy", ANNA, E("car"), modal="want"), "Anna wanted to buy the car."),
    (C("buy", ANNA, E("car"), modal="must", tense="present"), "Anna must buy the car."),
    (C("buy", ANNA, E("car"), modal="must"), "Anna had to buy the car."),
    (C("run", ANNA, modal="can", tense="present", negated=True), "Anna cannot run."),
    (C("run", ANNA, modal="can"), "Anna could run."),
    (C("buy", ANNA, E("bag", adjectives=("red", "old"))), "Anna bought the old red bag."),
    (C("sell", E("sister", owner=E("i")), E("car", owner=BEN)), "My sister sold Ben's car."),
    (C("sell", ANNA, E("car", owner=E("student", 2))), "Anna sold the students' car."),
    (C("see", THEY, E("you")), "They saw you."),
    (C("buy", E("woman", relative=C("read", Gap(), E("book", definite=False))), E("car")),
     "The woman who read a book bought the car."),
    (C("buy", E("woman", 2, relative=C("know", Gap(), ANNA, tense="present")), E("car")),
     "The women who know Anna bought the car."),
    (C("sell", ANNA, E("car", relative=C("buy", BEN, Gap()))), "Anna sold the car Ben bought."),
    (C("sell", ANNA, E("car", relative=C("buy", BEN, Gap()))), "Anna sold the car which Ben bought."),
    (C("see", ANNA, E("dog", relative=C("eat", Gap(), E("fish")))), "Anna saw the dog that ate the fish."),
    (C("buy", ANNA, E("bread"), asks="yes_no"), "Did Anna buy the bread?"),
    (C("buy", ANNA, E("bread"), asks="yes_no", negated=True), "Didn't Anna buy the bread?"),
    (C("be", ANNA, complement="tired", asks="yes_no", tense="present"), "Is Anna tired?"),
    (C("buy", ANNA, E("bread"), asks="who", tense="present", time="every_day"), "Who buys the bread every day?"),
    (C("buy", ANNA, E("bread"), asks="what"), "What did Anna buy?"),
    (C("meet", ANNA, BEN, asks="whom"), "Who did Anna meet?"),
    (C("give", ANNA, E("book"), BEN, asks="whom"), "Who did Anna give the book to?"),
    (C("buy", ANNA, E("bread"), place=Place("market"), asks="where"), "Where did Anna buy the bread?"),
    (C("come_back", ANNA, place=Place("market", "from"), asks="where"), "Where did Anna come back from?"),
    (C("be_at", ANNA, place=Place("market"), asks="where", tense="future"), "Where will Anna be?"),
    (C("buy", ANNA, E("bread"), time="yesterday", asks="when"), "When did Anna buy the bread?"),
    (C("buy", ANNA, E("egg", 3, True, False), asks="how_many"), "How many eggs did Anna buy?"),
    (C("drink", BEN, E("water", definite=False), asks="how_many"), "How much water did Ben drink?"),
    (Sentence(C("say", ANNA), "that", C("sleep", BEN)), "Anna said that Ben slept."),
    (Sentence(C("say", ANNA), "that", C("sleep", BEN)), "Anna said Ben slept."),
    (Sentence(C("sing", ANNA, tense="future"), "if", C("come_back", BEN, tense="present")),
     "If Ben comes back, Anna will sing."),
    (Sentence(C("sing", ANNA, tense="future"), "when", C("come_back", BEN, tense="future")),
     "Anna will sing when Ben comes back."),
    (Sentence(C("sleep", ANNA), "because", C("be", SHE, complement="tired")), "Anna slept because she was tired."),
    (Sentence(C("sing", ANNA), "and", C("laugh", BEN)), "Anna sang, and Ben laughed."),
    (Sentence(C("sing", ANNA), "but", C("laugh", BEN, negated=True)), "Anna sang, but Ben did not laugh."),
]  # fmt: skip


def test_surfaces():
    assert not [text for meaning, text in RIGHT if text not in accepted(meaning)]


def test_first_choice_is_the_usual_one():
    assert accepted(C("buy", ANNA, E("bread", definite=False), time="yesterday"))[0] == "Anna bought bread yesterday."


def test_paraphrases_are_exactly_these():
    assert set(accepted(C("pick_up", ANNA, E("gift"), negated=True))) == {
        f"Anna {no} {rest}."
        for no in ("did not", "didn't")
        for rest in ("pick up the gift", "pick the gift up", "pick up the present", "pick the present up")
    }


@pytest.mark.parametrize(("part", "text"), [
    (C(None, DOCTOR), "The doctor"), (C("buy", DOCTOR), "The doctor bought"),
    (C("buy", None, E("bread")), "Bought the bread"), (C(None, ANNA, E("bread"), negated=True), "Anna the bread"),
    (C("give", ANNA, None, DOCTOR), "Anna gave to the doctor"), (C(None, None, time="yesterday"), "Yesterday"),
    (C(None, None, place=Place("park")), "In the park"),
])  # fmt: skip
def test_fragments_stay_open(part, text):
    pieces = [p for p in en.pieces(Sentence(part), lambda key, options, weights=None: options[0]) if p.slot != "mark"]
    assert en.join(pieces) == text


def test_join_of_marks():
    assert en.join([Piece("yes", "a"), Piece(",", "mark"), Piece(".", "mark")]) == "Yes."


def test_noun_phrase():
    first = lambda key, options, weights=None: options[0]
    assert en.noun_phrase(E("cook", definite=False), first) == "a cook"
    assert en.noun_phrase(SHE, first) == "her"
