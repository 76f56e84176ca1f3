"""Japanese: hand-checked sentences, complete tables, paraphrases and fragments."""

from __future__ import annotations

import random

import pytest

from town.corpus import ja, world
from town.corpus.meaning import (
    Clause,
    Entity,
    Gap,
    Place,
    Sentence,
    paraphrases,
)


def first(key, options, weights=None):
    return options[0]


def said(what, pick=first):
    sentence = what if isinstance(what, Sentence) else Sentence(what)
    return ja.join(ja.pieces(sentence, pick))


def ways(what):
    return list(paraphrases(lambda pick: said(what, pick), 200))


E, C, G, S = Entity, Clause, Gap(), Sentence
ANNA, BEN, ME, YOU, WE = E("Anna"), E("Ben"), E("i"), E("you"), E("we")
SHE, HE = E("Anna", pronoun=True), E("Ben", pronoun=True)
BOOK, BREAD, DOCTOR, WINDOW = E("book"), E("bread"), E("doctor"), E("window")
NOW = {"tense": "present"}
LATER = {"tense": "future"}

CHECKED = [
    # time, place, order
    (C("buy", ANNA, BREAD, time="yesterday"), "アンナは昨日パンを買いました。"),
    (C("buy", ANNA, BREAD, time="yesterday", front="time"), "昨日、アンナはパンを買いました。"),
    (C("buy", ANNA, BOOK, time="yesterday"), "アンナは昨日、本を買いました。"),
    (C("read", ANNA, BOOK, place=Place("park"), front="place"), "公園で、アンナは本を読みました。"),
    (C("work", E("farmer"), time="every_day", tense="present"), "農夫は毎日働きます。"),
    (C("sing", BEN, adverb="often", tense="present"), "ベンはよく歌います。"),
    (C("read", E("child", 2), E("newspaper"), adverb="slowly"), "子供たちは新聞をゆっくり読みました。"),
    (C("wait", WE, adverb="alone", place=Place("station", "in_front_of")), "私たちは駅の前で自分たちだけで待ちました。"),
    # verb classes and forms
    (C("eat", E("student"), E("apple"), negated=True), "学生はりんごを食べませんでした。"),
    (C("sleep", E("cat", definite=False), **NOW), "猫が寝ています。"),
    (C("get_up", ANNA, time="tomorrow", **LATER), "アンナは明日起きます。"),
    (C("come_back", BEN, place=Place("village", "from")), "ベンは村から戻りました。"),
    (C("go", E("woman"), place=Place("school", "to"), **LATER), "女の人は学校へ行きます。"),
    (C("arrive", BEN, place=Place("hotel")), "ベンはホテルに着きました。"),
    (C("live", DOCTOR, place=Place("city", adjective="old"), **NOW), "医者は古い町に住んでいます。"),
    (C("live", DOCTOR, place=Place("river", "near")), "医者は川の近くに住んでいました。"),
    (C("have", ANNA, E("dog"), **NOW), "アンナは犬を飼っています。"),
    (C("have", BEN, E("key"), negated=True, **NOW), "ベンは鍵を持っていません。"),
    (C("know", ANNA, E("teacher"), **NOW), "アンナは先生を知っています。"),
    (C("know", ANNA, E("teacher"), negated=True, **NOW), "アンナは先生を知りません。"),
    (C("need", BEN, E("ticket"), **NOW), "ベンは切符が必要です。"),
    (C("love", BEN, E("horse"), negated=True), "ベンは馬が大好きではありませんでした。"),
    (C("meet", ANNA, DOCTOR), "アンナは医者に会いました。"),
    (C("eat", ANNA, E("soup")), "アンナはスープを飲みました。"),
    (C("pick_up", ANNA, BEN, place=Place("station", "from")), "アンナは駅にベンを迎えに行きました。"),
    # giving
    (C("give", ANNA, E("gift"), ME), "アンナは私にプレゼントをくれました。"),
    (C("give", ME, E("gift"), ANNA), "私はアンナにプレゼントをあげました。"),
    (C("show", BEN, E("map"), E("mother", owner=ME)), "ベンは母に地図を見せてくれました。"),
    (C("send", BEN, E("letter"), E("mother", owner=ANNA)), "ベンはアンナのお母さんに手紙を送りました。"),
    (C("bring", ME, E("flower"), BEN), "私はベンに花を持っていきました。"),
    # modals
    (C("drink", ME, E("tea"), modal="want", **NOW), "私はお茶を飲みたいです。"),
    (C("drink", ME, E("tea"), modal="want", negated=True), "私はお茶を飲みたくありませんでした。"),
    (C("drink", BEN, E("tea"), modal="want", **NOW), "ベンはお茶を飲みたがっています。"),
    (C("repair", BEN, E("clock"), modal="can", negated=True, **NOW), "ベンは時計を修理することができません。"),
    (C("go", WE, place=Place("market", "to"), modal="must"), "私たちは市場へ行かなければなりませんでした。"),
    # to be
    (C("be", E("house"), complement="big", **NOW), "家は大きいです。"),
    (C("be", E("house"), complement="good", negated=True), "家はよくありませんでした。"),
    (C("be", BEN, complement="tired"), "ベンは疲れていました。"),
    (C("be", BEN, complement="happy", **LATER), "ベンは幸せでしょう。"),
    (C("be", E("box"), complement="empty", negated=True, **NOW), "箱は空っぽではありません。"),
    (C("be", E("dog"), complement="old", **NOW), "犬は年を取っています。"),
    (C("be_at", E("dog"), place=Place("garden"), **NOW), "犬は庭にいます。"),
    (C("be_at", E("dog", 3, True, False), place=Place("garden"), **NOW), "庭に犬が3匹います。"),
    (C("be_at", E("car"), place=Place("house", "behind"), negated=True), "車は家の後ろにありませんでした。"),
    # noun phrases
    (C("sell", BEN, E("apple", 12, True)), "ベンはりんごを12個売りました。"),
    (C("sing", E("guest", 4, True)), "4人のお客さんは歌いました。"),
    (C("carry", BEN, E("box", adjectives=("big", "red"))), "ベンは大きい赤い箱を運びました。"),
    (C("carry", BEN, E("box", adjectives=("old", "heavy"))), "ベンは古くて重い箱を運びました。"),
    (C("see", BEN, E("woman", adjectives=("young", "tired"))), "ベンは疲れた若い女の人を見かけました。"),
    (C("lose", ANNA, E("bag", owner=SHE)), "アンナは自分のかばんをなくしました。"),
    (C("lose", ANNA, E("bag", owner=HE)), "アンナは彼のかばんをなくしました。"),
    (C("help", E("dog", pronoun=True), E("doctor", 2, pronoun=True)), "その犬は彼女たちを手伝いました。"),
    (C("find", E("sister", owner=ME), E("key", 2, pronoun=True)), "姉はそれらを見つけました。"),
    (C("see", E("man", relative=C("buy", G, BREAD)), E("car", relative=C("sell", BEN, G))),
     "パンを買った男の人はベンが売った車を見ました。"),
    (C("be", E("girl", relative=C("be", G, complement="happy", **NOW)), complement="young", **NOW),
     "幸せな女の子は若いです。"),
    # questions
    (C("sleep", YOU, asks="yes_no"), "寝ましたか。"),
    (C("open", ANNA, WINDOW, asks="who"), "誰が窓を開けましたか。"),
    (C("lose", DOCTOR, E("key", owner=DOCTOR), asks="who"), "誰が医者の鍵をなくしましたか。"),
    (C("wait", ANNA, place=Place("park", "near"), asks="where"), "アンナはどこで待ちましたか。"),
    (C("eat", ANNA, E("soup"), asks="what"), "アンナは何を食べましたか。"),
    (C("meet", ANNA, BEN, asks="whom"), "アンナは誰に会いましたか。"),
    (C("give", ANNA, BOOK, BEN, asks="whom"), "アンナは誰に本をあげましたか。"),
    (C("go", ANNA, place=Place("park", "to"), asks="where"), "アンナはどこへ行きましたか。"),
    (C("work", ANNA, place=Place("park"), asks="where", **NOW), "アンナはどこで働いていますか。"),
    (C("arrive", ANNA, time="today", asks="when", **LATER), "アンナはいつ着きますか。"),
    (C("have", ANNA, E("book", 7, True), asks="how_many", **NOW), "アンナは本を何冊持っていますか。"),
    (C("be", ANNA, complement="tired", asks="yes_no", **NOW), "アンナは疲れていますか。"),
    # two clauses
    (S(C("sleep", ANNA), "because", C("be", SHE, complement="tired")), "アンナは疲れていたので、寝ました。"),
    (S(C("wait", ANNA), "because", C("lose", SHE, E("key", owner=SHE))), "アンナは自分の鍵をなくしたので、待ちました。"),
    (S(C("laugh", ANNA), "because", C("be", BEN, complement="happy", **NOW)), "ベンが幸せなので、アンナは笑いました。"),
    (S(C("get_up", ANNA), "because", C("call", BEN, SHE)), "アンナは、ベンが彼女に電話をかけたので、起きました。"),
    (S(C("work", BEN), "because", C("need", ANNA, E("car"))), "アンナが車を必要としていたので、ベンは働きました。"),
    (S(C("help", BEN, DOCTOR), "when", C("arrive", E("doctor", pronoun=True))), "医者が着いたとき、ベンは医者を手伝いました。"),
    (S(C("sing", BEN, **NOW), "when", C("get_up", HE, **NOW)), "ベンは起きると、歌います。"),
    (S(C("sing", BEN, **LATER), "if", C("open", ANNA, WINDOW, **NOW)), "アンナが窓を開けたら、ベンは歌います。"),
    (S(C("sing", BEN, **LATER), "if", C("be", HE, complement="happy", **NOW)), "ベンは幸せだったら、歌います。"),
    (S(C("say", ANNA), "that", C("buy", BEN, BREAD)), "アンナは、ベンがパンを買ったと言いました。"),
    (S(C("say", ANNA), "that", C("be", SHE, complement="tired")), "アンナは疲れていると言いました。"),
    (S(C("say", ANNA), "that", C("buy", SHE, BREAD, modal="want", **NOW)), "アンナはパンを買いたいと言いました。"),
    (S(C("think", ME, **NOW), "that", C("come_back", BEN, **LATER)), "私は、ベンが戻ると思います。"),
    (S(C("believe", BEN, negated=True, **NOW), "that", C("be", ANNA, complement="young", **NOW)),
     "ベンは、アンナが若いと信じていません。"),
    (S(C("hope", BEN, **NOW), "that", C("be", E("bag"), complement="green", **NOW)),
     "ベンは、かばんが緑色であることを願っています。"),
    (S(C("buy", ANNA, BREAD), "and", C("come_back", SHE)), "アンナはパンを買って、戻りました。"),
    (S(C("wait", ANNA, negated=True), "and", C("sing", BEN)), "アンナは待たず、ベンは歌いました。"),
    (S(C("wait", ANNA), "and", C("sing", BEN, **LATER)), "アンナは待ちましたし、ベンは歌います。"),
    (S(C("sing", BEN, **LATER), "when", C("arrive", ANNA, **NOW)), "アンナが着いたとき、ベンは歌います。"),
    (S(C("work", ANNA), "but", C("buy", SHE, BREAD, negated=True)), "アンナは働きましたが、パンを買いませんでした。"),
]


def test_checked_sentences():
    assert not [(made, text) for what, text in CHECKED if (made := said(what)) != text]


@pytest.mark.parametrize(
    ("word", "forms"),
    [
        (("買う", "5"), "買います 買った 買わない 買わなかった 買って 買え 買わず"),
        (("書く", "5"), "書きます 書いた 書かない 書かなかった 書いて 書け 書かず"),
        (("探す", "5"), "探します 探した 探さない 探さなかった 探して 探せ 探さず"),
        (("待つ", "5"), "待ちます 待った 待たない 待たなかった 待って 待て 待たず"),
        (("運ぶ", "5"), "運びます 運んだ 運ばない 運ばなかった 運んで 運べ 運ばず"),
        (("読む", "5"), "読みます 読んだ 読まない 読まなかった 読んで 読め 読まず"),
        (("帰る", "5"), "帰ります 帰った 帰らない 帰らなかった 帰って 帰れ 帰らず"),
        (("食べる", "1"), "食べます 食べた 食べない 食べなかった 食べて 食べれ 食べず"),
        (("掃除する", "suru"), "掃除します 掃除した 掃除しない 掃除しなかった 掃除して 掃除すれ 掃除せず"),
        (("持ってくる", "kuru"), "持ってきます 持ってきた 持ってこない 持ってこなかった 持ってきて 持ってくれ 持ってこず"),
        (("行く", "iku"), "行きます 行った 行かない 行かなかった 行って 行け 行かず"),
        (("ある", "aru"), "あります あった ない なかった あって あれ なく"),
        (("住んでいる", "1"), "住んでいます 住んでいた 住んでいない 住んでいなかった 住んでいて 住んでいれ 住んでおらず"),
        (("寒い", "i"), "寒いです 寒かった 寒くない 寒くなかった 寒くて 寒けれ 寒くなくて"),
        (("いい", "ii"), "いいです よかった よくない よくなかった よくて よけれ よくなくて"),
        (("清潔", "na"), "清潔です 清潔だった 清潔ではない 清潔ではなかった 清潔で 清潔なら 清潔ではなくて"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_inflection(word, forms):
    f = ja.inflect
    found = (f(*word, "polite"), f(*word, "plain", True), f(*word, "plain", False, True), f(*word, "plain", True, True),
             f(*word, "te"), f(*word, "ba"), f(*word, "te", negated=True))
    assert " ".join(found) == forms


def test_potential():
    got = [ja.potential(*w)[0] for w in (("買う", "5"), ("見る", "1"), ("掃除する", "suru"), ("行く", "iku"))]
    assert got == ["買える", "見られる", "掃除できる", "行ける"]


def test_distinct_concepts_have_distinct_words():
    for table in (ja.NOUNS, ja.TIMES, ja.ADVERBS):
        words = [w for options in table.values() for w in options]
        assert len(words) == len(set(words))
    qualities = [{a.text for options in kinds.values() for a in options} for kinds in ja.ADJECTIVES.values()]
    assert sum(map(len, qualities)) == len(set().union(*qualities))
    # "meet" with に and with と is one verb; soup is drunk; pictures are taken or fetched with one verb.
    owners: dict[str, set[str]] = {}
    for name, options in ja.VERBS.items():
        for verb in options:
            owners.setdefault(verb.text, set()).add(name.split()[0])
    shared = {text: names for text, names in owners.items() if len(names) > 1}
    assert shared == {"飲む": {"eat", "drink"}, "いる": {"have", "be_at"}}


def test_paraphrases_are_distinct_and_right():
    found = ways(C("buy", ANNA, E("book", 3, True), time="yesterday"))
    assert len(found) == len(set(found))
    assert set(found) == {
        "アンナは昨日、本を3冊買いました。", "昨日、アンナは本を3冊買いました。", "アンナは昨日3冊の本を買いました。",
        "昨日、アンナは3冊の本を買いました。", "アンナは昨日、本を3冊購入しました。", "昨日、アンナは本を3冊購入しました。",
        "アンナは昨日3冊の本を購入しました。", "昨日、アンナは3冊の本を購入しました。",
    }
    assert "疲れていたから、アンナは眠りました。" in ways(CHECKED[[t for _, t in CHECKED].index(
        "アンナは疲れていたので、寝ました。")][0])
    rng = random.Random(1)
    counts = [len(ways(world.sentence(rng, None))) for _ in range(150)]
    assert 4 <= sum(counts) / len(counts) <= 30


def test_a_contrasted_subject_is_said():
    assert all("私は" in text for text in ways(S(C("wait", ME), "but", C("sing", BEN))))
    assert "待ちました。" in ways(C("wait", ME))
    assert all("あなた" in text for text in ways(C("wait", YOU)))


def test_noun_phrase():
    assert ja.noun_phrase(E("mother", owner=ANNA), first) == "アンナのお母さん"
    assert ja.noun_phrase(E("man", relative=C("buy", G, BREAD)), first) == "パンを買った男の人"


@pytest.mark.parametrize(
    ("what", "text"),
    [
        (C(None, DOCTOR), "医者は。"),
        (C("buy", DOCTOR), "医者は買いました。"),
        (C("buy", None, BREAD), "パンを買いました。"),
        (C(None, DOCTOR, BREAD), "医者はパンを。"),
        (C(None, None, complement="happy"), "幸せ。"),
        (C("be", DOCTOR), "医者は。"),
        (C("be", None), ""),
        (S(C("sleep", ANNA), "because", None), "アンナは寝ました。"),
        (S(C("sleep", ANNA), "because", C(None, SHE)), "アンナは寝ました。"),
        (S(C("sleep", ANNA), "because", C(None, BEN)), "アンナは寝ました、ベンが。"),
        (S(C(None, None), "because", C("sleep", BEN)), "ベンが寝たので。"),
        (S(C(None, None), None, C("sleep", BEN)), "ベンは寝ました。"),
        (S(C("say", ANNA), "that", C(None, BEN)), "アンナは言いました、ベンが。"),
        (S(C(None, None), "that", C("sleep", BEN)), "ベンが寝たと。"),
        (S(C("sleep", ANNA), "and", C(None, BEN)), "アンナは寝て、ベンは。"),
    ],
)
def test_fragments(what, text):
    assert said(what) == text
