"""The topics and templates of the written prompts."""

TOPICS = """
inflation; interest rates; supply and demand; the stock market; taxes; insurance; unemployment; international trade;
gravity; magnetism; black holes; the greenhouse effect; photosynthesis; evolution; DNA; the immune system; vaccines;
antibiotics; the water cycle; volcanoes; earthquakes; tides; the seasons; solar energy; nuclear power; wind turbines;
batteries; electric cars; semiconductors; radio waves; lasers; the periodic table; acids and bases; enzymes; proteins;
the human heart; sleep; memory; stress; anxiety; nutrition; vitamins; diabetes; exercise; yoga; meditation;
the Roman Empire; the French Revolution; the Silk Road; the Industrial Revolution; the Cold War; ancient Egypt;
the Renaissance; the printing press; the Black Death; the moon landing; the Olympic Games; democracy; human rights;
the separation of powers; constitutions; elections; propaganda; free speech; existentialism; stoicism; utilitarianism;
Buddhism; mythology; folk tales; poetry; the novel; theatre; film noir; jazz; classical music; the guitar; painting;
photography; architecture; fashion; chess; football; tennis; swimming; cycling; hiking; camping; gardening; bees;
whales; wolves; coral reefs; rain forests; deserts; glaciers; rivers; recycling; plastic waste; biodiversity;
machine learning; neural networks; databases; operating systems; encryption; passwords; the internet; email; web browsers;
open-source software; version control; algorithms; sorting; recursion; binary numbers; probability; statistics; calculus;
geometry; prime numbers; graph theory; remote work; job interviews; time management; leadership; teamwork; public speaking;
negotiation; marketing; customer service; small businesses; budgeting; saving money; retirement; renting a flat;
buying a house; moving to another city; learning a language; raising children; making friends; cooking; baking bread;
coffee; tea; cheese; street food; vegetarian food; breakfast; travel by train; air travel; museums; libraries; schools;
universities; online courses; homework; science fairs; robots; drones; space travel; satellites; Mars; the Moon; the Sun
"""

ASKING = """
Explain {topic} in simple terms.
Explain {topic} to a ten-year-old.
What are the main advantages and disadvantages of {topic}?
Give me five facts about {topic}.
Write a short introduction to {topic} for a magazine.
Write a poem about {topic}.
Write a short story in which {topic} changes somebody's life.
What are common misunderstandings about {topic}?
How has {topic} changed over the last hundred years?
Why does {topic} matter today?
I have to give a five-minute talk about {topic}. Can you write an outline?
Write three questions with answers for a quiz about {topic}.
Compare {topic} with {other}. What do they have in common?
Write an email to a colleague that recommends a book about {topic}.
Pretend you are a teacher. How would you begin a lesson on {topic}?
Pretend you are an old sailor. What do you think about {topic}?
Write a dialogue between two friends who disagree about {topic}.
What should a beginner know about {topic}?
List the most important terms of {topic}, each with a short definition.
Write a blog post about {topic} that begins with a surprising question.
How could {topic} look in fifty years?
Describe {topic} in one paragraph, then name two open questions.
What would the world be like without {topic}?
Write a persuasive paragraph in favour of teaching {topic} at school.
Give me a plan for one week in which I learn the basics of {topic}.
What is the connection between {topic} and {other}?
"""

CODE = """
Write a {language} function that {task}.
Write a {language} function that {task}, and explain how it works.
How do I write a {language} program that {task}?
Write a {language} function that {task}. Add a few tests.
I am new to {language}. Show me code that {task}.
"""

LANGUAGES = ["Python", "Python", "Python", "JavaScript", "C", "Java", "Go", "Rust", "SQL and Python", "Bash"]

TASKS = """
reverses a string; counts the words of a text; finds the largest number in a list; checks whether a word is a palindrome;
computes the factorial of a number; prints the first n Fibonacci numbers; removes duplicates from a list; sorts a list of names;
merges two sorted lists; searches a sorted list for a number; reads a CSV file and prints its columns; counts the vowels in a text;
converts Celsius to Fahrenheit; checks whether a number is prime; finds the common items of two lists; rotates a list by k places;
flattens a nested list; counts how often each letter occurs; finds the longest word in a sentence; multiplies two matrices;
computes the average of a list; finds the second smallest number; validates an email address; generates a random password;
removes the blank lines of a file; prints a multiplication table; converts a number to binary; sums the digits of a number;
checks whether brackets are balanced; implements a stack; implements a queue; implements a linked list; traverses a binary tree;
finds the shortest path in a graph; groups words that are anagrams; splits a list into chunks; transposes a matrix;
computes the greatest common divisor; finds all pairs that add up to a given sum; reads JSON and prints the keys;
downloads a web page and saves it; renames all files in a folder; finds the most common words of a file; draws a triangle of stars;
simulates the throw of two dice; plays a guessing game with the user; converts Roman numerals to numbers; capitalises each word;
computes compound interest; checks whether a year is a leap year; counts the days between two dates; finds missing numbers in a list
"""

NAMES = """Anna Ben Clara David Emma Felix Grace Henry Ida James Kate Liam Maria Noah Olivia Paul Rosa Sam Tina Victor
Wendy Yusuf Zoe Ahmed Bella Carlos Dora Erik Fatima George"""

THINGS = """apples pears oranges books pencils stamps marbles cookies tickets bottles eggs chairs flowers candles shells cards
stickers balloons sandwiches notebooks"""

SUMS = """
{name} has {a} {things} and buys {b} more. Then {name} gives {c} of them to {friend}. How many {things} does {name} have left?
{name} buys {c} {things} for ${d} each and {e} {more} for ${f} each. How much does {name} pay in total?
A shop sells {things} in boxes of {d}. {name} needs {a} {things}. How many boxes must {name} buy, and how many {things} are left over?
{name} reads {d} pages a day. A book has {a} pages. After {e} days, how many pages are left to read?
{name} earns ${d} an hour and works {e} hours a day, {f} days a week. How much does {name} earn in {g} weeks?
A train travels {h} miles in {e} hours. How far does it travel in {g} hours at the same speed?
{name} is {e} years older than {friend}. Together they are {a} years old. How old is {friend}?
{name} has ${a}. {friend} has {e} times as much. How much money do they have together?
A recipe for {e} people needs {d} eggs. How many eggs are needed for {k} people?
{name} saves ${d} each week. How many weeks does it take to save ${h}?
{name} bakes {h} cookies. {p}% of them are burnt. How many cookies are good?
A jacket costs ${h}. It is on sale for {p}% off. What is the price now?
A rectangle is {d} metres long and {e} metres wide. What are its area and its perimeter?
{name} runs {e} miles on Monday, twice as far on Tuesday, and {f} miles more than on Tuesday on Wednesday. How far is that in total?
There are {k} rows of seats with {d} seats each. {a} seats are taken. How many are free?
{name} and {friend} share {h} {things}. {name} gets {e} more than {friend}. How many does each of them get?
A tank holds {h} litres. It loses {d} litres an hour. How much is left after {e} hours?
{name} sells half of {k} {things} on Saturday and {e} on Sunday. How many {things} remain?
What is {a} + {b} * {e}? Explain each step.
What is {p}% of {h}?
Solve for x: {e}x + {d} = {a}.
If {e} workers build a wall in {k} hours, how long do {f} workers need?
"""

WORDS = {  # by WordNet file: templates for a common word of each
    "animal": [
        "What do {words} eat?",
        "Where do {words} live?",
        "Write a short fable about a {word}.",
        "Describe a {word} to somebody who has never seen one.",
    ],
    "artifact": [
        "What is a {word} used for?",
        "How is a {word} made?",
        "Who invented the {word}?",
        "Write an advertisement for a new kind of {word}.",
    ],
    "body": ["What does the {word} do in the human body?", "How can I keep my {word} healthy?"],
    "food": [
        "How do I make {word} at home?",
        "Suggest a dinner for four people with {word}.",
        "Where does {word} come from?",
        "Is {word} healthy?",
    ],
    "plant": ["How do I grow {words} in my garden?", "What are {words} used for?"],
    "substance": [
        "What is {word} made of?",
        "What is {word} used for in industry?",
        "What are the properties of {word}?",
    ],
    "phenomenon": ["What causes {word}?", "Explain {word} and give an example."],
    "feeling": ["How can I deal with {word}?", "Write a short poem about {word}."],
    "cognition": ["What is meant by {word}?", "Write a paragraph about {word}, with an example."],
    "state": ["What is meant by {word}?", "How does {word} come about?"],
    "person": [
        "What does a {word} do all day?",
        "How do I become a {word}?",
        "Pretend you are a {word}. Introduce yourself.",
    ],
    "act": ["What is meant by {word}?", "Give me three tips about {word}."],
    "event": ["Describe a {word} as a reporter would.", "What usually happens at a {word}?"],
    "location": ["What is a {word}?", "Write a short story that is set in a {word}."],
}

NAMED = {  # by WordNet file: templates for a named instance of each
    "person": [
        "Who was {word}?",
        "What is {word} known for?",
        "When did {word} live?",
        "Tell me about the life of {word}.",
    ],
    "location": [
        "Where is {word}?",
        "What is {word} known for?",
        "What should I see in {word}?",
        "Tell me about {word}.",
    ],
    "artifact": ["What is {word}?", "Where is {word}?"],
    "event": ["When did {word} take place?", "What happened in {word}?", "Who fought in {word}?"],
    "object": ["Where is {word}?", "How large is {word}?"],
    "group": ["What is {word}?", "When was {word} founded?"],
}

TRANSLATING = [
    "Translate German to English: {text}",
    "Translate into English: {text}",
    "What does this mean in English? {text}",
    "Please translate this German text into English.\n\n{text}",
    "Translate from German: {text}",
]

SUMMARISING = [
    "Summarize: {text}",
    "Summarize this text.\n\n{text}",
    "Summarize the following text in two sentences.\n\n{text}",
    "{text}\n\nSummarize the text above.",
    "What are the main points of this text?\n\n{text}",
    "TL;DR of this, please: {text}",
]

READING = [
    "{texts}\n\nWith the help of the text above, answer this question: what is {term}?",
    "Answer the question from the text.\n\nText: {texts}\n\nQuestion: What is {term}?",
    "{texts}\n\nWhat does the text say about {term}?",
    "Use this information:\n{texts}\n\nNow explain in your own words what {term} is.",
    "Read this.\n\n{texts}\n\nQuestion: How is {term} described?",
]
