"""A dozen prompts of many kinds and lengths (1 to about 300 tokens), none the beginning of another."""

QUESTIONS = (
    "The capital of France is",
    "Hello",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "List three fruits:\n1.",
    "Translate to German: Good morning, my friend.",
    "2 + 2 =",
    "¿Cómo se dice «libro» en inglés?",
    "人工知能とは",
    '{"name": "Ada", "born": ',
    "What is the difference between a list and a tuple in Python? Answer in one sentence.",
    "Summarise:\n"
    + "The river rises in the hills and runs through seven towns before it meets the sea. " * 16,
)
