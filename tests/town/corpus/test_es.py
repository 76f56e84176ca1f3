"""Spanish: hand-checked sentences, completeness, and no crashes."""

from __future__ import annotations

import pytest

from town.corpus import es
from town.corpus.meaning import (
    Clause,
    Entity,
    Gap,
    Place,
    Sentence,
    paraphrases,
)

E, C, S, P, G = Entity, Clause, Sentence, Place, Gap()
A, T, ME, Y, W = E("Anna"), E("Tom"), E("i"), E("you"), E("we")


def first(key, options, weights=None):
    return options[0]


def say(sentence, pick=first):
    return es.join(es.pieces(sentence, pick))


PAIRS = [
    (S(C("buy", A, E("bread", definite=False))), "Anna compró pan."),
    (S(C("buy", A, E("bread", definite=False), negated=True)), "Anna no compró pan."),
    (S(C("drink", T, E("water", definite=False))), "Tom bebió agua."),
    (S(C("drink", T, E("water"), tense="present")), "Tom bebe el agua."),
    (S(C("have", A, E("apple", 14, True, False), tense="present")), "Anna tiene 14 manzanas."),
    (S(C("have", A, E("apple", 3, True, False))), "Anna tenía tres manzanas."),
    (S(C("buy", A, E("flower", 2, definite=False, adjectives=("beautiful", )))), "Anna compró flores hermosas."),
    (S(C("see", E("doctor"), E("bird", adjectives=("old", )))), "La doctora vio al pájaro viejo."),
    (S(C("see", E("man", adjectives=("old", )), E("horse", 2, adjectives=("white", )))), "El hombre viejo vio a los caballos blancos."),
    (S(C("sell", E("teacher"), E("book", owner=E("doctor")))), "El profesor vendió el libro de la doctora."),
    (S(C("sell", E("teacher"), E("book", owner=E("teacher", pronoun=True)))), "El profesor vendió su libro."),
    (S(C("lose", ME, E("key", 2, owner=ME))), "Perdí mis llaves."),
    (S(C("give", A, E("book"), T)), "Anna le dio el libro a Tom."),
    (S(C("give", A, E("book", pronoun=True), E("Tom", pronoun=True))), "Anna se lo dio."),
    (S(C("give", A, E("key", 2, pronoun=True), E("Tom", pronoun=True), negated=True)), "Anna no se las dio."),
    (S(C("give", T, E("key", pronoun=True), ME, tense="present")), "Tom me la da."),
    (S(C("send", T, E("letter", pronoun=True), E("child", 2, pronoun=True))), "Tom se la envió."),
    (S(C("buy", A, E("car", pronoun=True))), "Anna lo compró."),
    (S(C("see", T, E("Anna", pronoun=True), modal="want", tense="present")), "Tom quiere verla."),
    (S(C("show", T, E("letter", pronoun=True), E("Anna", pronoun=True), modal="can", negated=True, tense="present")), "Tom no puede mostrársela."),
    (S(C("pick_up", A, E("key", pronoun=True))), "Anna la recogió."),
    (S(C("need", A, E("car", definite=False), tense="present")), "Anna necesita un coche."),
    (S(C("need", A, E("machine", pronoun=True))), "Anna la necesitaba."),
    (S(C("visit", T, E("Anna", pronoun=True), tense="future")), "Tom la visitará."),
    (S(C("meet", ME, E("Anna", pronoun=True))), "Me encontré con ella."),
    (S(C("meet", T, ME)), "Tom se encontró conmigo."),
    (S(C("go", A, place=P("market", "to"), time="yesterday")), "Anna fue al mercado ayer."),
    (S(C("go", A, place=P("market", "to"), time="yesterday", front="time")), "Ayer Anna fue al mercado."),
    (S(C("go", E("girl", 2), place=P("school", "to"), tense="future")), "Las chicas irán a la escuela."),
    (S(C("come_back", E("woman"), place=P("hospital", "from"))), "La mujer volvió del hospital."),
    (S(C("get_up", A, negated=True)), "Anna no se levantó."),
    (S(C("get_up", ME, modal="must", tense="present")), "Tengo que levantarme."),
    (S(C("laugh", W, tense="future")), "Nos reiremos."),
    (S(C("be", A, complement="tired")), "Anna estaba cansada."),
    (S(C("be", E("house", 2), complement="beautiful", tense="present")), "Las casas son hermosas."),
    (S(C("be", T, complement="cold", tense="present")), "Tom tiene frío."),
    (S(C("be", E("soup"), complement="cold", tense="present")), "La sopa está fría."),
    (S(C("be_at", E("key"), place=P("bridge"), tense="present")), "La llave está en el puente."),
    (S(C("live", T, place=P("village", "near"))), "Tom vivía cerca del pueblo."),
    (S(C("buy", A, E("bread", definite=False), time="every_day")), "Anna compraba pan todos los días."),
    (S(C("work", A, adverb="alone", place=P("office"))), "Anna trabajó sola en la oficina."),
    (S(C("call", A, E("father", owner=ME), adverb="often", tense="present")), "Anna llama a mi padre a menudo."),
    (S(C("see", T, E("woman", relative=C("repair", G, E("clock"))))), "Tom vio a la mujer que reparó el reloj."),
    (S(C("read", T, E("letter", relative=C("write", A, G)))), "Tom leyó la carta que Anna escribió."),
    (S(C("help", T, E("woman", relative=C("know", ME, G, tense="present")))), "Tom ayudó a la mujer a la que conozco."),
    (S(C("say", A), "that", C("come_back", T, tense="future")), "Anna dijo que Tom volvería."),
    (S(C("say", A), "that", C("buy", T, E("car", definite=False))), "Anna dijo que Tom había comprado un coche."),
    (S(C("believe", A, tense="present", negated=True), "that", C("come_back", T, tense="present")), "Anna no cree que Tom vuelva."),
    (S(C("hope", A, tense="present"), "that", C("arrive", T, tense="future")), "Anna espera que Tom llegue."),
    (S(C("sleep", T, tense="future"), "when", C("arrive", A, tense="present")), "Tom dormirá cuando Anna llegue."),
    (S(C("sleep", T, tense="future"), "if", C("be", E("Tom", pronoun=True), complement="tired", tense="present")), "Tom dormirá si está cansado."),
    (S(C("wait", A), "because", C("lose", E("Anna", pronoun=True), E("key", owner=E("Anna", pronoun=True)))), "Anna esperó porque perdió su llave."),
    (S(C("sing", A), "and", C("invite", E("Anna", pronoun=True), T)), "Anna cantó e invitó a Tom."),
    (S(C("wait", A), "but", C("arrive", T, negated=True)), "Anna esperó, pero Tom no llegó."),
    (S(C("buy", A, E("bread"), asks="yes_no")), "¿Compró Anna el pan?"),
    (S(C("buy", E("Anna", pronoun=True), E("bread"), asks="yes_no")), "¿Compró el pan?"),
    (S(C("buy", A, E("bread"), asks="what")), "¿Qué compró Anna?"),
    (S(C("buy", A, E("bread"), place=P("market"), asks="where")), "¿Dónde compró Anna el pan?"),
    (S(C("go", A, place=P("school", "to"), asks="where")), "¿Adónde fue Anna?"),
    (S(C("come_back", E("Anna", pronoun=True), place=P("school", "from"), asks="where", tense="present")), "¿De dónde vuelve?"),
    (S(C("see", A, T, asks="whom")), "¿A quién vio Anna?"),
    (S(C("give", A, E("book"), T, asks="whom")), "¿A quién le dio Anna el libro?"),
    (S(C("sing", A, asks="who")), "¿Quién cantó?"),
    (S(C("sing", A, time="today", asks="when", tense="future")), "¿Cuándo cantará Anna?"),
    (S(C("buy", A, E("apple", 5, True, False), asks="how_many")), "¿Cuántas manzanas compró Anna?"),
    (S(C("paint", T, E("woman", adjectives=("young", )), time="this_morning", place=P("park"))), "Tom pintó a la mujer joven en el parque esta mañana."),
    (S(C("eat", E("dog"), E("fish", adjectives=("good", )))), "El perro comió el buen pescado."),
    (S(C("read", E("student"), E("newspaper", 2, adjectives=("old", "long")))), "La estudiante leyó los periódicos viejos y largos."),
    (S(C(None, E("doctor"))), "La doctora."),
    (S(C("buy", None, E("bread", definite=False))), "Compró pan."),
    (S(C("buy", E("doctor"))), "La doctora compró."),
    (S(C(None, None, time="yesterday")), "Ayer."),
    (S(C(None, None), "because", C(None, E("Anna", pronoun=True))), "Porque ella."),
    (S(C("wait", A), "because", C("work", T)), "Anna esperó porque Tom trabajaba."),
    (S(C("be", Y, complement="happy", tense="present")), "Usted está feliz."),
    (S(C("be", W, complement="tired")), "Estábamos cansados."),
    (S(C("arrive", E("Clara"), place=P("hotel", definite=False, adjective="new"))), "Clara llegó a un hotel nuevo."),
    (S(C("run", T, place=P("bridge", "to"))), "Tom corrió hasta el puente."),
    (S(C("know", A, E("woman", relative=C("meet", T, G)))), "Anna conocía a la mujer con la que Tom se encontró."),
    (S(C("see", T, E("bird", definite=False))), "Tom vio un pájaro."),
    (S(C("love", T, E("cheese", definite=False), tense="present")), "Tom adora el queso."),
    (S(C("love", T, E("mother", owner=T), tense="present")), "Tom quiere a la madre de Tom."),
    (S(C("have", A, E("brother", definite=False), tense="present")), "Anna tiene un hermano."),
    (S(C("drink", A, E("water", adjectives=("cold",)))), "Anna bebió el agua fría."),
    (S(C("say", A), "that", C("be", T, complement="tired")), "Anna dijo que Tom estaba cansado."),
    (S(C("hope", A), "that", C("come_back", T, tense="future")), "Anna esperaba que Tom volviera."),
    (S(C("believe", A, tense="present", negated=True), "that", C("buy", T, E("car"))), "Anna no cree que Tom haya comprado el coche."),
    (S(C("help", T, Y)), "Tom lo ayudó a usted."),
    (S(C("give", T, E("book"), Y)), "Tom le dio el libro a usted."),
    (S(C("look_for", W, E("doctor", definite=False))), "Buscamos a una doctora."),
    (S(C("cook", E("father", owner=ME), E("rice"), adverb="always", tense="present")), "Mi padre siempre cocina el arroz."),
    (S(C("be", E("bridge"), complement="long", tense="present")), "El puente es largo."),
    (S(C("be", E("coat"), complement="warm", tense="present")), "El abrigo es cálido."),
    (S(C("be", A, complement="warm")), "Anna tenía calor."),
]


def test_the_most_usual_way_to_say_it():
    assert not [(made, text) for meaning, text in PAIRS if (made := say(meaning)) != text]


OTHERS = [
    (S(C("buy", A, E("bread"), asks="yes_no")), "¿Anna compró el pan?"),
    (S(C("give", A, E("book", pronoun=True), T, modal="want", tense="present")), "Anna se lo quiere dar a Tom."),
    (S(C("give", A, E("book", pronoun=True), T, modal="want", tense="present")), "Anna quiere dárselo a Tom."),
    (S(C("go", A, place=P("market", "to"), time="yesterday")), "Ayer Anna fue al mercado."),
    (S(C("read", T, E("letter", relative=C("write", A, G)))), "Tom leyó la carta que escribió Anna."),
    (S(C("help", T, E("woman", relative=C("know", ME, G, tense="present")))), "Tom ayudó a la mujer a quien conozco."),
    (S(C("sleep", T, tense="future"), "when", C("arrive", A, tense="present")), "Cuando Anna llegue, Tom dormirá."),
    (S(C("buy", E("Anna", pronoun=True), E("bread"))), "Ella compró el pan."),
    (S(C("buy", E("Anna", pronoun=True), E("bread"))), "Compró el pan."),
    (S(C("get_up", ME, modal="must", tense="present")), "Me tengo que levantar."),
    (S(C("say", A), "that", C("buy", T, E("car"))), "Anna dijo que Tom compró el coche."),
    (S(C("buy", A, E("car", definite=False, adjectives=("new",)))), "Anna compró un nuevo coche."),
]


@pytest.mark.parametrize(("meaning", "text"), OTHERS, ids=[t for _, t in OTHERS])
def test_other_ways_to_say_it(meaning, text):
    assert text in set(paraphrases(lambda pick: say(meaning, pick), 300))


def test_a_prefix_of_the_pieces_stays_open():
    pieces = es.pieces(S(C("buy", A, E("bread"))), first)
    assert es.join(pieces[:2]) == "Anna compró"
    assert es.join([]) == ""


def test_conjugations():
    v = es.VERBS
    assert v["tener"].present == ("tengo", "tiene", "tenemos", "tienen")
    assert v["tener"].subjunctive == ("tenga", "tenga", "tengamos", "tengan")
    assert v["tener"].past_subjunctive == ("tuviera", "tuviera", "tuviéramos", "tuvieran")
    assert v["buscar"].preterite[0] == "busqué"
    assert v["buscar"].subjunctive == ("busque", "busque", "busquemos", "busquen")
    assert v["llegar"].preterite[0] == "llegué"
    assert v["comprar"].past_subjunctive[2] == "compráramos"
    assert v["cerrar"].subjunctive == ("cierre", "cierre", "cerremos", "cierren")
    assert v["volver"].present == ("vuelvo", "vuelve", "volvemos", "vuelven")
    assert v["recoger"].present == ("recojo", "recoge", "recogemos", "recogen")
    assert v["conocer"].subjunctive[1] == "conozca"
    assert v["enviar"].present == ("envío", "envía", "enviamos", "envían")
    assert v["vivir"].present[2] == "vivimos"
    assert v["traer"].past_subjunctive[1] == "trajera"
    assert v["reír"].future == ("reiré", "reirá", "reiremos", "reirán")
    assert v["dormir"].subjunctive[2] == "durmamos"


def test_noun_phrases_for_the_tasks():
    assert es.noun_phrase(E("teacher"), first) == "del profesor"
    assert es.noun_phrase(A, first) == "de Anna"
    assert es.noun_phrase(E("father", owner=ME), first) == "de mi padre"
    assert es.noun_phrase(E("student"), first, "alone") == "la estudiante"
