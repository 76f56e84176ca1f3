"""Vietnamese: hand-checked sentences, the lexicon, paraphrases and fragments."""

from __future__ import annotations

import pytest

from town.corpus import vi
from town.corpus.meaning import (
    KIN,
    MASS,
    NAMES,
    PLACES,
    Clause,
    Entity,
    Gap,
    Place,
    Sentence,
    concepts,
    paraphrases,
)

E, C, P, S = Entity, Clause, Place, Sentence
ANNA, DAVID, DOCTOR = E("Anna"), E("David"), E("doctor")
SHE, HE, IT = E("Anna", pronoun=True), E("David", pronoun=True), E("book", pronoun=True)
A_BOOK = E("book", definite=False)


def first(key, options, weights=None):
    return options[0]


def say(sentence, pick=first):
    return vi.join(vi.pieces(sentence, pick))


def every(sentence, most=500):
    return list(paraphrases(lambda pick: say(sentence, pick), most))


# The first option of every choice.
PAIRS = [
    (S(C("buy", ANNA, A_BOOK)), "Anna đã mua một quyển sách."),
    (S(C("buy", ANNA, E("apple", 3, True, False), time="yesterday")), "Anna đã mua ba quả táo hôm qua."),
    (S(C("buy", ANNA, E("apple", 12, True, False), place=P("market"))), "Anna đã mua 12 quả táo ở chợ."),
    (S(C("buy", ANNA, E("bread", definite=False), negated=True)), "Anna không mua bánh mì."),
    (S(C("buy", ANNA, A_BOOK, tense="future", time="tomorrow")), "Anna sẽ mua một quyển sách ngày mai."),
    (S(C("buy", ANNA, E("shoe", 2, definite=False))), "Anna đã mua một đôi giày."),
    (S(C("read", DOCTOR, E("newspaper"), tense="present", time="now")), "Bác sĩ đang đọc tờ báo bây giờ."),
    (S(C("read", DOCTOR, E("newspaper"), tense="present", time="every_day")), "Bác sĩ đọc tờ báo mỗi ngày."),
    (S(C("read", E("i"), E("letter", 2), tense="present")), "Tôi đang đọc những lá thư."),
    (S(C("have", DAVID, E("horse", 2, True, False), tense="present")), "David có hai con ngựa."),
    (S(C("have", DAVID, E("car", definite=False), tense="present", negated=True)),
     "David không có chiếc ô tô nào."),
    (S(C("know", E("we"), E("teacher"), tense="present", negated=True)), "Chúng tôi không quen thầy giáo."),
    (S(C("see", E("cat"), E("bird", 2), place=P("garden"))),
     "Con mèo đã nhìn thấy những con chim trong vườn."),
    (S(C("open", E("driver"), E("window", adjectives=("big",)), adverb="slowly")),
     "Người tài xế đã mở cửa sổ to chậm rãi."),
    (S(C("call", ANNA, E("brother", owner=E("i")))), "Anna đã gọi điện cho anh trai tôi."),
    (S(C("pick_up", ANNA, DAVID, place=P("station", "from"))), "Anna đã đón David từ nhà ga."),
    (S(C("pick_up", ANNA, E("letter"), place=P("station"))), "Anna đã lấy lá thư ở nhà ga."),
    (S(C("forget", DAVID, E("umbrella", owner=HE), place=P("office"))),
     "David đã bỏ quên chiếc ô của mình ở văn phòng."),
    (S(C("love", SHE, E("coffee"), tense="present")), "Cô ấy rất thích cà phê."),
    (S(C("love", SHE, DAVID, tense="present")), "Cô ấy yêu David."),
    (S(C("eat", E("child"), E("soup", adjectives=("warm",)), adverb="often", tense="present")),
     "Đứa trẻ thường ăn súp nóng."),
    (S(C("give", ANNA, A_BOOK, DAVID)), "Anna đã đưa cho David một quyển sách."),
    (S(C("give", ANNA, IT, DAVID)), "Anna đã đưa nó cho David."),
    (S(C("show", ANNA, E("picture", owner=SHE), E("i"))), "Anna đã cho tôi xem bức tranh của mình."),
    (S(C("bring", DAVID, E("flower", 5, True, False), E("mother", owner=E("you")), tense="future")),
     "David sẽ mang năm bông hoa đến cho mẹ bạn."),
    (S(C("send", DAVID, E("letter"), ANNA, negated=True)), "David không gửi cho Anna lá thư."),
    (S(C("sleep", E("child"), time="at_night", tense="present", place=P("hotel"))),
     "Đứa trẻ ngủ ở khách sạn ban đêm."),
    (S(C("live", E("painter"), place=P("village", definite=False, adjective="old"))),
     "Họa sĩ sống ở một ngôi làng cũ."),
    (S(C("go", ANNA, place=P("school", "to"), time="on_monday", front="time")),
     "Vào thứ Hai, Anna đã đi đến trường."),
    (S(C("travel", E("we"), place=P("river", "to"), time="last_week")),
     "Chúng tôi đã đi du lịch đến bờ sông tuần trước."),
    (S(C("arrive", ANNA, place=P("station"))), "Anna đã đến nhà ga."),
    (S(C("come_back", ANNA, place=P("forest", "from"), negated=True)), "Anna không trở về từ rừng."),
    (S(C("run", E("dog"), place=P("house", "to"))), "Con chó đã chạy đến ngôi nhà."),
    (S(C("be", ANNA, complement="tired", tense="present")), "Anna mệt."),
    (S(C("be", E("car"), complement="red", tense="present")), "Chiếc ô tô đó có màu đỏ."),
    (S(C("be", E("book"), complement="old", tense="present", negated=True)), "Quyển sách đó không cũ."),
    (S(C("be", DOCTOR, complement="old", tense="future")), "Bác sĩ đó sẽ già."),
    (S(C("be_at", ANNA, place=P("kitchen"), tense="present")), "Anna ở trong bếp."),
    (S(C("be_at", E("child", definite=False), place=P("park"))), "Trong công viên có một đứa trẻ."),
    (S(C("buy", ANNA, A_BOOK, modal="want", tense="present")), "Anna muốn mua một quyển sách."),
    (S(C("help", E("you"), E("farmer", 2), modal="must", tense="present")),
     "Bạn phải giúp những người nông dân."),
    (S(C("repair", DAVID, E("bicycle", owner=ANNA), modal="can", tense="past")),
     "David có thể sửa chiếc xe đạp của Anna."),
    (S(C("wait", E("man", relative=C("buy", Gap(), A_BOOK)), place=P("bridge"))),
     "Người đàn ông đã mua một quyển sách đã đợi trên cầu."),
    (S(C("lose", DAVID, E("key", relative=C("find", ANNA, Gap())))),
     "David đã làm mất chiếc chìa khóa mà Anna đã tìm thấy."),
    (S(C("be", E("girl", relative=C("call", DAVID, Gap())), complement="happy")),
     "Cô bé mà David đã gọi điện cho thì vui."),
    (S(C("see", ANNA, E("table", definite=False, adjectives=("old", "red")))),
     "Anna đã nhìn thấy một cái bàn cũ màu đỏ."),
    (S(C("say", ANNA), "that", C("sleep", DAVID, tense="present")), "Anna đã nói rằng David đang ngủ."),
    (S(C("hope", E("i"), tense="present"), "that", C("come_back", HE, tense="future")),
     "Tôi hy vọng rằng anh ấy sẽ trở về."),
    (S(C("sleep", ANNA), "because", C("be", SHE, complement="tired")), "Anna đã ngủ vì cô ấy mệt."),
    (S(C("sleep", ANNA), "because", C("sing", DAVID)), "Anna đã ngủ vì David đã hát."),
    (S(C("sing", DAVID), "when", C("arrive", ANNA, place=P("hotel"))),
     "David đã hát khi Anna đến khách sạn."),
    (S(C("sing", ANNA), "when", C("see", SHE, DAVID)), "Anna đã hát khi cô ấy nhìn thấy David."),
    (S(C("help", DAVID, E("we"), tense="future"), "if", C("arrive", HE, tense="present")),
     "David sẽ giúp chúng tôi nếu anh ấy đến."),
    (S(C("help", DAVID, ANNA, tense="future"), "if", C("call", SHE, DAVID, tense="present")),
     "David sẽ giúp Anna nếu cô ấy gọi điện cho David."),
    (S(C("buy", ANNA, A_BOOK), "and", C("drink", DAVID, E("tea", definite=False))),
     "Anna đã mua một quyển sách, và David đã uống trà."),
    (S(C("buy", ANNA, A_BOOK), "but", C("read", SHE, IT, negated=True)),
     "Anna đã mua một quyển sách, nhưng cô ấy không đọc nó."),
    (S(C("buy", ANNA, A_BOOK, asks="yes_no")), "Anna có mua một quyển sách không?"),
    (S(C("be", ANNA, complement="happy", tense="present", asks="yes_no")), "Anna có vui không?"),
    (S(C("buy", ANNA, A_BOOK, asks="who")), "Ai đã mua một quyển sách?"),
    (S(C("buy", ANNA, A_BOOK, asks="what", tense="future")), "Anna sẽ mua gì?"),
    (S(C("give", ANNA, E("book"), DAVID, asks="whom")), "Anna đã đưa cho ai quyển sách?"),
    (S(C("meet", ANNA, DAVID, place=P("park"), asks="where")), "Anna đã gặp David ở đâu?"),
    (S(C("go", ANNA, place=P("park", "to"), asks="where")), "Anna đã đi đâu?"),
    (S(C("go", ANNA, place=P("park", "to"), time="yesterday", asks="when")),
     "Anna đã đi đến công viên khi nào?"),
    (S(C("go", ANNA, place=P("park", "to"), time="tomorrow", tense="future", asks="when")),
     "Khi nào Anna sẽ đi đến công viên?"),
    (S(C("have", ANNA, E("apple", 3, True, False), tense="present", asks="how_many")),
     "Anna có bao nhiêu quả táo?"),
    (S(C(None, DOCTOR)), "Bác sĩ."),
    (S(C(None, DOCTOR, E("book"))), "Bác sĩ quyển sách."),
    (S(C("buy", DOCTOR)), "Bác sĩ đã mua."),
    (S(C("buy", None, E("book"))), "Đã mua quyển sách."),
    (S(C(None, None, place=P("garden"), time="yesterday")), "Trong vườn hôm qua."),
]


def test_most_usual_words():
    assert not [(made, text) for meaning, text in PAIRS if (made := say(meaning)) != text]


# Other right wordings.
OTHERS = [
    (S(C("close", ANNA, E("door"), time="yesterday")),
     ("Anna đã đóng cánh cửa hôm qua.", "Hôm qua Anna đóng cánh cửa đó.")),
    (S(C("give", ANNA, E("letter"), DAVID)), ("Anna đã đưa lá thư cho David.", "Anna trao cho David bức thư đó.")),
    (S(C("buy", ANNA, E("car", definite=False), asks="yes_no")),
     ("Anna có mua một chiếc xe hơi không?", "Anna đã mua một chiếc ô tô chưa?")),
    (S(C("sing", DAVID), "when", C("arrive", ANNA, place=P("hotel"))),
     ("Khi Anna đến khách sạn, David đã hát.", "David hát lúc Anna tới khách sạn.")),
    (S(C("sing", DAVID, tense="future"), "if", C("call", ANNA, E("i"), tense="present")),
     ("Nếu Anna gọi điện cho tôi thì David sẽ hát.", "David sẽ hát nếu Anna gọi điện cho tôi.")),
    (S(C("be", E("mother", owner=E("i")), complement="happy")), ("Mẹ tôi vui.", "Mẹ của tôi vui vẻ.")),
    (S(C("buy", ANNA, A_BOOK), "and", C("sleep", SHE)),
     ("Anna đã mua một quyển sách, và cô ấy đã ngủ.", "Anna đã mua một quyển sách và đã ngủ.")),
]


@pytest.mark.parametrize(("meaning", "texts"), OTHERS, ids=[texts[0] for _, texts in OTHERS])
def test_paraphrases(meaning, texts):
    said = every(meaning)
    assert len(said) == len(set(said))
    assert set(texts) <= set(said)


def test_noun_phrase():
    who = E("teacher", relative=C("know", E("i"), Gap(), tense="present"))
    assert vi.noun_phrase(who, first) == "thầy giáo mà tôi quen"
    assert vi.noun_phrase(DOCTOR, first) == "bác sĩ đó"
    assert vi.noun_phrase(ANNA, first) == vi.join([vi.pieces(S(C(None, ANNA)), first)[0]])
    assert all(vi.noun_phrase(E(k, owner=ANNA), first) for k in KIN)
    assert len({vi.noun_phrase(E(n), first) for n in NAMES}) == len(NAMES)


# In the order of concepts().
CLASSIFIED = """
Ba đứa trẻ; Ba người phụ nữ; Ba người đàn ông; Ba cô bé; Ba cậu bé; Ba người bạn; Ba người hàng xóm; Ba
bác sĩ; Ba thầy giáo; Ba nữ sinh; Ba người nông dân; Ba người tài xế; Ba đầu bếp; Ba họa sĩ; Ba vị
khách; Ba người mẹ; Ba người bố; Ba người chị gái; Ba người anh trai; Ba con chó; Ba con mèo; Ba con
ngựa; Ba con chim; Ba quả táo; Ba cái bánh ngọt; Ba con cá; Ba quả trứng; Ba quyển sách; Ba lá thư; Ba
tờ báo; Ba tấm bản đồ; Ba chiếc ô tô; Ba chiếc xe đạp; Ba chiếc chìa khóa; Ba chiếc túi; Ba cái ghế; Ba
cái bàn; Ba cái đèn; Ba chiếc đồng hồ; Ba tấm vé; Ba bức tranh; Ba chiếc điện thoại; Ba chiếc ô; Ba
chiếc áo khoác; Ba chiếc giày; Ba món quà; Ba bông hoa; Ba cửa sổ; Ba cánh cửa; Ba cái máy; Ba chiếc
thuyền; Ba cái cốc; Ba quả bóng; Ba cái hộp; Ba chiếc máy ảnh
"""
NEW_PLACES = """
Trong một ngôi nhà mới; Ở một ngôi trường mới; Ở một khu chợ mới; Ở một nhà ga mới; Trong một khu vườn
mới; Trong một căn bếp mới; Trong một công viên mới; Ở một thành phố mới; Ở một ngôi làng mới; Ở một
bệnh viện mới; Ở một thư viện mới; Ở một văn phòng mới; Bên một dòng sông mới; Trên một cây cầu mới; Ở
một cửa hàng mới; Ở một bảo tàng mới; Ở một khách sạn mới; Trên một con phố mới; Trong một khu rừng mới
"""
KNOWN_PLACES = """
Trong nhà; Ở trường; Ở chợ; Ở nhà ga; Trong vườn; Trong bếp; Trong công viên; Trong thành phố; Trong
làng; Ở bệnh viện; Ở thư viện; Ở văn phòng; Bên sông; Trên cầu; Ở cửa hàng; Ở bảo tàng; Ở khách sạn;
Trên phố; Trong rừng
"""


def _listed(text):
    return [" ".join(entry.split()) for entry in text.split(";")]


def test_three_of_everything():
    found = concepts()
    kinds = ("person", "animal", "food", "drink", "readable", "thing")
    nouns = [c for kind in kinds for c in found[kind] if c not in MASS]
    assert [say(S(C(None, E(c, 3, True, False))))[:-1] for c in nouns] == _listed(CLASSIFIED)


def test_every_place():
    assert [say(S(C(None, None, place=P(c, "at", False, "new"))))[:-1] for c in PLACES] == _listed(NEW_PLACES)
    assert [say(S(C(None, None, place=P(c))))[:-1] for c in PLACES] == _listed(KNOWN_PLACES)
