"""French: hand-checked sentences, completeness, and no crashes."""

from __future__ import annotations

import pytest

from town.corpus import fr
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
    return fr.join(fr.pieces(sentence, pick))


PAIRS = [
    (S(C("buy", A, E("bread", definite=False))), "Anna a acheté du pain."),
    (S(C("buy", A, E("bread", definite=False), negated=True)), "Anna n'a pas acheté de pain."),
    (S(C("drink", T, E("water", definite=False))), "Tom a bu de l'eau."),
    (S(C("drink", T, E("water"), tense="present")), "Tom boit l'eau."),
    (S(C("have", A, E("apple", 14, True, False), tense="present")), "Anna a 14 pommes."),
    (S(C("have", A, E("apple", 3, True, False))), "Anna avait trois pommes."),
    (S(C("buy", A, E("flower", 2, definite=False, adjectives=("beautiful", )))), "Anna a acheté de belles fleurs."),
    (S(C("see", E("doctor"), E("bird", adjectives=("old", )))), "La médecin a vu le vieil oiseau."),
    (S(C("see", E("man", adjectives=("old", )), E("horse", 2, adjectives=("white", )))), "Le vieil homme a vu les chevaux blancs."),
    (S(C("sell", E("teacher"), E("book", owner=E("doctor")))), "Le professeur a vendu le livre de la médecin."),
    (S(C("sell", E("teacher"), E("book", owner=E("teacher", pronoun=True)))), "Le professeur a vendu son livre."),
    (S(C("lose", ME, E("key", 2, owner=ME))), "J'ai perdu mes clés."),
    (S(C("give", A, E("book"), T)), "Anna a donné le livre à Tom."),
    (S(C("give", A, E("book", pronoun=True), E("Tom", pronoun=True))), "Anna le lui a donné."),
    (S(C("give", A, E("key", 2, pronoun=True), E("Tom", pronoun=True), negated=True)), "Anna ne les lui a pas données."),
    (S(C("give", T, E("key", pronoun=True), ME, tense="present")), "Tom me la donne."),
    (S(C("send", T, E("letter", pronoun=True), E("child", 2, pronoun=True))), "Tom la leur a envoyée."),
    (S(C("buy", A, E("car", pronoun=True))), "Anna l'a achetée."),
    (S(C("see", T, E("Anna", pronoun=True), modal="want", tense="present")), "Tom veut la voir."),
    (S(C("show", T, E("letter", pronoun=True), E("Anna", pronoun=True), modal="can", negated=True, tense="present")), "Tom ne peut pas la lui montrer."),
    (S(C("pick_up", A, E("key", pronoun=True))), "Anna est allée la chercher."),
    (S(C("need", A, E("car", definite=False), tense="present")), "Anna a besoin d'une voiture."),
    (S(C("need", A, E("machine", pronoun=True))), "Anna en avait besoin."),
    (S(C("visit", T, E("Anna", pronoun=True), tense="future")), "Tom lui rendra visite."),
    (S(C("meet", ME, E("Anna", pronoun=True))), "Je l'ai rencontrée."),
    (S(C("meet", T, ME)), "Tom m'a rencontré."),
    (S(C("go", A, place=P("market", "to"), time="yesterday")), "Anna est allée au marché hier."),
    (S(C("go", A, place=P("market", "to"), time="yesterday", front="time")), "Hier, Anna est allée au marché."),
    (S(C("go", E("girl", 2), place=P("school", "to"), tense="future")), "Les filles iront à l'école."),
    (S(C("come_back", E("woman"), place=P("hospital", "from"))), "La femme est revenue de l'hôpital."),
    (S(C("get_up", A, negated=True)), "Anna ne s'est pas levée."),
    (S(C("get_up", ME, modal="must", tense="present")), "Je dois me lever."),
    (S(C("laugh", W, tense="future")), "Nous rirons."),
    (S(C("be", A, complement="tired")), "Anna était fatiguée."),
    (S(C("be", E("house", 2), complement="beautiful", tense="present")), "Les maisons sont belles."),
    (S(C("be", T, complement="cold", tense="present")), "Tom a froid."),
    (S(C("be", E("soup"), complement="cold", tense="present")), "La soupe est froide."),
    (S(C("be_at", E("key"), place=P("bridge"), tense="present")), "La clé est sur le pont."),
    (S(C("live", T, place=P("village", "near"))), "Tom vivait près du village."),
    (S(C("buy", A, E("bread", definite=False), time="every_day")), "Anna achetait du pain tous les jours."),
    (S(C("work", A, adverb="alone", place=P("office"))), "Anna a travaillé seule au bureau."),
    (S(C("call", A, E("father", owner=ME), adverb="often", tense="present")), "Anna appelle souvent mon père."),
    (S(C("see", T, E("woman", relative=C("repair", G, E("clock"))))), "Tom a vu la femme qui a réparé l'horloge."),
    (S(C("read", T, E("letter", relative=C("write", A, G)))), "Tom a lu la lettre qu'Anna a écrite."),
    (S(C("help", T, E("woman", relative=C("know", ME, G, tense="present")))), "Tom a aidé la femme que je connais."),
    (S(C("say", A), "that", C("come_back", T, tense="future")), "Anna a dit que Tom reviendrait."),
    (S(C("say", A), "that", C("buy", T, E("car", definite=False))), "Anna a dit que Tom avait acheté une voiture."),
    (S(C("believe", A, tense="present", negated=True), "that", C("come_back", T, tense="present")), "Anna ne croit pas que Tom revienne."),
    (S(C("hope", A, tense="present"), "that", C("arrive", T, tense="future")), "Anna espère que Tom arrivera."),
    (S(C("sleep", T, tense="future"), "when", C("arrive", A, tense="present")), "Tom dormira quand Anna arrivera."),
    (S(C("sleep", T, tense="future"), "if", C("be", E("Tom", pronoun=True), complement="tired", tense="present")), "Tom dormira s'il est fatigué."),
    (S(C("wait", A), "because", C("lose", E("Anna", pronoun=True), E("key", owner=E("Anna", pronoun=True)))), "Anna a attendu parce qu'elle a perdu sa clé."),
    (S(C("sing", A), "and", C("invite", E("Anna", pronoun=True), T)), "Anna a chanté et elle a invité Tom."),
    (S(C("wait", A), "but", C("arrive", T, negated=True)), "Anna a attendu, mais Tom n'est pas arrivé."),
    (S(C("buy", A, E("bread"), asks="yes_no")), "Est-ce qu'Anna a acheté le pain ?"),
    (S(C("buy", E("Anna", pronoun=True), E("bread"), asks="yes_no")), "Est-ce qu'elle a acheté le pain ?"),
    (S(C("buy", A, E("bread"), asks="what")), "Qu'est-ce qu'Anna a acheté ?"),
    (S(C("buy", A, E("bread"), place=P("market"), asks="where")), "Où est-ce qu'Anna a acheté le pain ?"),
    (S(C("go", A, place=P("school", "to"), asks="where")), "Où est-ce qu'Anna est allée ?"),
    (S(C("come_back", E("Anna", pronoun=True), place=P("school", "from"), asks="where", tense="present")), "D'où est-ce qu'elle revient ?"),
    (S(C("see", A, T, asks="whom")), "Qui est-ce qu'Anna a vu ?"),
    (S(C("give", A, E("book"), T, asks="whom")), "À qui est-ce qu'Anna a donné le livre ?"),
    (S(C("sing", A, asks="who")), "Qui a chanté ?"),
    (S(C("sing", A, time="today", asks="when", tense="future")), "Quand est-ce qu'Anna chantera ?"),
    (S(C("buy", A, E("apple", 5, True, False), asks="how_many")), "Combien de pommes est-ce qu'Anna a achetées ?"),
    (S(C("paint", T, E("woman", adjectives=("young", )), time="this_morning", place=P("park"))), "Tom a peint la jeune femme dans le parc ce matin."),
    (S(C("eat", E("dog"), E("fish", adjectives=("good", )))), "Le chien a mangé le bon poisson."),
    (S(C("read", E("student"), E("newspaper", 2, adjectives=("old", "long")))), "L'étudiante a lu les longs vieux journaux."),
    (S(C(None, E("doctor"))), "La médecin."),
    (S(C("buy", None, E("bread", definite=False))), "A acheté du pain."),
    (S(C("buy", E("doctor"))), "La médecin a acheté."),
    (S(C(None, None, time="yesterday")), "Hier."),
    (S(C(None, None), "because", C(None, E("Anna", pronoun=True))), "Parce qu'elle."),
    (S(C("wait", A), "because", C("work", T)), "Anna a attendu parce que Tom travaillait."),
    (S(C("be", Y, complement="happy", tense="present")), "Vous êtes heureux."),
    (S(C("be", W, complement="tired")), "Nous étions fatigués."),
    (S(C("arrive", E("Clara"), place=P("hotel", definite=False, adjective="new"))), "Clara est arrivée dans un nouvel hôtel."),
    (S(C("run", T, place=P("bridge", "to"))), "Tom a couru jusqu'au pont."),
    (S(C("know", A, E("woman", relative=C("visit", T, G)))), "Anna connaissait la femme à qui Tom a rendu visite."),
    (S(C("find", T, E("car", relative=C("need", A, G)))), "Tom a trouvé la voiture dont Anna avait besoin."),
    (S(C("need", T, E("bread", definite=False))), "Tom avait besoin de pain."),
    (S(C("love", T, E("cheese", definite=False), tense="present")), "Tom aime le fromage."),
    (S(C("pick_up", A, E("letter", pronoun=True), modal="want", tense="present")), "Anna veut aller la chercher."),
    (S(C("see", T, E("flower", 11, True, False))), "Tom a vu onze fleurs."),
    (S(C("say", A), "that", C("be", T, complement="tired")), "Anna a dit que Tom était fatigué."),
    (S(C("believe", A, tense="present", negated=True), "that", C("buy", T, E("car"))), "Anna ne croit pas que Tom ait acheté la voiture."),
    (S(C("see", E("bird"), E("child", 2, definite=False))), "L'oiseau a vu des enfants."),
    (S(C("write", ME, E("letter", definite=False), tense="future", time="tomorrow")), "J'écrirai une lettre demain."),
]


def test_the_most_usual_way_to_say_it():
    assert not [(made, text) for meaning, text in PAIRS if (made := say(meaning)) != text]


OTHERS = [
    (S(C("buy", A, E("bread"), asks="yes_no")), "Anna a-t-elle acheté le pain ?"),
    (S(C("buy", A, E("bread"), asks="yes_no")), "Anna a acheté le pain ?"),
    (S(C("buy", E("Anna", pronoun=True), E("bread"), asks="yes_no")), "A-t-elle acheté le pain ?"),
    (S(C("buy", A, E("bread"), asks="what")), "Qu'a acheté Anna ?"),
    (S(C("go", A, place=P("school", "to"), asks="where")), "Où Anna est-elle allée ?"),
    (S(C("go", A, place=P("school", "to"), asks="where", negated=True)), "Où Anna n'est-elle pas allée ?"),
    (S(C("be_at", A, place=P("school"), asks="where", tense="present")), "Où est Anna ?"),
    (S(C("buy", A, E("apple", 5, True, False), asks="how_many")), "Combien de pommes Anna a-t-elle achetées ?"),
    (S(C("need", A, E("car"), asks="what", tense="present")), "De quoi Anna a-t-elle besoin ?"),
    (S(C("sleep", T, tense="future"), "when", C("arrive", A, tense="present")), "Quand Anna arrivera, Tom dormira."),
    (S(C("go", A, place=P("market", "to"), time="yesterday")), "Hier, Anna est allée au marché."),
    (S(C("buy", A, E("car", definite=False, adjectives=("new",)))), "Anna a acheté une voiture neuve."),
    (S(C("work", A, adverb="alone")), "Anna a travaillé toute seule."),
    (S(C("go", A, place=P("city", "to"))), "Anna s'est rendue en ville."),
]


@pytest.mark.parametrize(("meaning", "text"), OTHERS, ids=[t for _, t in OTHERS])
def test_other_ways_to_say_it(meaning, text):
    assert text in set(paraphrases(lambda pick: say(meaning, pick), 300))


def test_a_prefix_of_the_pieces_stays_open():
    pieces = fr.pieces(S(C("buy", A, E("bread"))), first)
    assert fr.join(pieces[:2]) == "Anna a acheté"
    assert fr.join([]) == ""


def test_conjugations():
    forms = {v: fr.VERBS[v] for v in ("acheter", "manger", "nettoyer", "envoyer", "boire", "appeler", "courir")}
    assert forms["acheter"].present == ("achète", "achète", "achetons", "achetez", "achètent")
    assert forms["acheter"].future[1] == "achètera"
    assert forms["manger"].present[2] == "mangeons"
    assert forms["manger"].imperfect == ("mangeais", "mangeait", "mangions", "mangiez", "mangeaient")
    assert forms["nettoyer"].present[4] == "nettoient"
    assert forms["nettoyer"].subjunctive == ("nettoie", "nettoie", "nettoyions", "nettoyiez", "nettoient")
    assert forms["envoyer"].future[0] == "enverrai"
    assert forms["boire"].subjunctive == ("boive", "boive", "buvions", "buviez", "boivent")
    assert forms["appeler"].conditional[1] == "appellerait"
    assert forms["courir"].future[4] == "courront"


def test_noun_phrases_for_the_tasks():
    assert fr.noun_phrase(E("teacher"), first) == "du professeur"
    assert fr.noun_phrase(A, first) == "d'Anna"
    assert fr.noun_phrase(E("father", owner=ME), first) == "de mon père"
    assert fr.noun_phrase(E("student"), first, "alone") == "l'étudiante"


def test_possessives_and_prenominal_forms():
    assert say(S(C("find", A, E("bicycle", owner=W)))) == "Anna a trouvé notre vélo."
    assert say(S(C("find", A, E("clock", owner=ME)))) == "Anna a trouvé mon horloge."
    assert say(S(C("find", A, E("clock", owner=ME, adjectives=("old",))))) == "Anna a trouvé ma vieille horloge."
    assert say(S(C("see", A, E("hospital", definite=False, adjectives=("beautiful",))))) == (
        "Anna a vu un bel hôpital."
    )
