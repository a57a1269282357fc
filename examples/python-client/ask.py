"""Asks a model and streams the reply: `python ask.py URL KEYRING MODEL PROMPT`.

Needs the client: `pip install nsbridge`, or `pip install ../../python` in a checkout.
"""

import sys

from nsbridge import Client, Error


def main() -> int:
    url, keys, model, prompt = sys.argv[1:]
    try:
        with Client(url, keys) as client:
            reply = client.text(model, prompt, max_tokens=200)
            for token in reply:  # Ctrl-C cancels the worker's run
                print(token, end="", flush=True)
    except Error as error:
        print(f"\nask: {error}", file=sys.stderr)
        return 1
    if reply.usage:
        print(f"\n\n{reply.usage.output_tokens} tokens, seed {reply.seed}, attempt {reply.attempt}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
