"""Drives a real engine and counts what it answers: `drive.py vllm|sglang|triton REQUESTS PID`.

Runs in the engine's network namespace with the standard library alone. Prints `ready` once the
engine answers, then waits for a line, sends the requests, eight at a time, and prints the counts
as JSON. Ends when the engine's process does."""

import http.client
import json
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

MODEL = "tiny-llama"
WORDS = "gpu memory kernel tensor queue token latency cache prefix prompt decode batch host".split()
PORTS = {"vllm": 8000, "sglang": 30000, "triton": 8000}
# None of them generates a token.
READY = {"vllm": "/health", "sglang": "/v1/models", "triton": "/v2/models/failing/ready"}
AT_ONCE = 8

engine, requests, pid = sys.argv[1], int(sys.argv[2]), sys.argv[3]


def ask(method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", PORTS[engine], timeout=300)
    try:
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def complete(number, random):
    """A completion of known lengths; the answer says how many tokens it had."""
    body = {"model": MODEL, "max_tokens": random.choice([1, 4, 16, 64]), "temperature": 1.0, "ignore_eos": True}
    body["prompt"] = " ".join(random.choice(WORDS) for _ in range(random.randint(5, 120)))
    if number % 3 == 0:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    status, text = ask("POST", "/v1/completions", body)
    if status != 200:
        return {"failed": 1}
    if body.get("stream"):
        events = [line[6:] for line in text.decode().splitlines() if line.startswith("data: {")]
        usage = next(event["usage"] for event in map(json.loads, events) if event.get("usage"))
    else:
        usage = json.loads(text)["usage"]
    return {"success": 1, "prompt": usage["prompt_tokens"], "generated": usage["completion_tokens"]}


def infer(number, random):
    """An inference with a batch; each seventh is of the model that fails."""
    model, rows = ("failing", 1) if number % 7 == 0 else ("identity", random.choice([1, 1, 2, 8]))
    data = [float(number)] * (4 * rows)
    tensor = {"name": "x", "shape": [rows, 4], "datatype": "FP32", "data": data}
    status, _ = ask("POST", f"/v2/models/{model}/infer", {"inputs": [tensor]})
    return {"success": 1, "inferences": rows} if status == 200 else {"failed": 1}


def is_ready():
    try:
        return ask("GET", READY[engine])[0] == 200
    except OSError:
        return False


def main():
    while not is_ready():
        with open(f"/proc/{pid}/stat") as stat:
            if stat.read().rpartition(") ")[2][0] in "ZX":
                sys.exit(1)
        time.sleep(0.5)
    print("ready", flush=True)
    sys.stdin.readline()
    serve = infer if engine == "triton" else complete
    totals, lock = {"success": 0, "failed": 0}, threading.Lock()

    def one(number):
        counts = serve(number, random.Random(number))
        with lock:
            for name, count in counts.items():
                totals[name] = totals.get(name, 0) + count

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(one, range(requests)))
    print(json.dumps(totals), flush=True)


main()
