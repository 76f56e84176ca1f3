"""Prompts, in the language of the task, for data sets that have only texts."""

from __future__ import annotations

LANGUAGES = {
    "ar": "Arabic", "cs": "Czech", "de": "German", "en": "English", "es": "Spanish", "fa": "Persian",
    "fi": "Finnish", "fr": "French", "hi": "Hindi", "it": "Italian", "ja": "Japanese", "ko": "Korean",
    "nl": "Dutch", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "tr": "Turkish",
    "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip

SUMMARIZE = {
    "en": "Summarize this text in a few sentences.\n\n{source}",
    "de": "Fasse diesen Text in wenigen Sätzen zusammen.\n\n{source}",
    "fr": "Résume ce texte en quelques phrases.\n\n{source}",
    "es": "Resume este texto en pocas frases.\n\n{source}",
    "zh": "请用几句话概括这段文字。\n\n{source}",
    "ja": "次の文章を数文で要約してください。\n\n{source}",
    "vi": "Hãy tóm tắt văn bản này trong vài câu.\n\n{source}",
}

PASSAGE = {
    "en": "Answer the question with the help of the passage.\n\nPassage: {context}\n\nQuestion: {question}",
    "de": "Beantworte die Frage mit Hilfe des Abschnitts.\n\nAbschnitt: {context}\n\nFrage: {question}",
    "fr": "Réponds à la question à l'aide du passage.\n\nPassage : {context}\n\nQuestion : {question}",
    "es": "Responde a la pregunta con ayuda del pasaje.\n\nPasaje: {context}\n\nPregunta: {question}",
    "zh": "请根据下面的段落回答问题。\n\n段落：{context}\n\n问题：{question}",
    "ja": "次の文章をもとに質問に答えてください。\n\n文章：{context}\n\n質問：{question}",
    "vi": "Hãy trả lời câu hỏi dựa vào đoạn văn.\n\nĐoạn văn: {context}\n\nCâu hỏi: {question}",
}


def translate(source: str, from_: str, into: str) -> str:
    """Ask for the translation of a text, in English."""
    return f"Translate {LANGUAGES[from_]} into {LANGUAGES[into]}: {source}"


def summarize(source: str, language: str) -> str:
    """Ask for a summary of a text."""
    return SUMMARIZE[language].replace("{source}", source)


def ask(context: str, question: str, language: str) -> str:
    """Ask a question about a passage."""
    before, _, after = PASSAGE[language].partition("{context}")
    return before + context + after.replace("{question}", question)
