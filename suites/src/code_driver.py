"""Runs an answer's code, then the tests; the proof is written if all of them have passed, and last of all."""

import ast
import builtins
import os
import sys
import types


def lend_names(code, tests, scope):
    """Gives tests the names that they read and nobody has: modules, and the function, whose name no prompt tells."""
    nodes = [node for test in tests for node in ast.walk(ast.parse(test))]

    def is_unknown(node):
        return isinstance(node, ast.Name) and node.id not in scope and not hasattr(builtins, node.id)

    for node in nodes:
        if isinstance(node, ast.Attribute) and is_unknown(node.value):
            scope[node.value.id] = __import__(node.value.id)
    called = {node.func.id for node in nodes if isinstance(node, ast.Call) and is_unknown(node.func)}
    functions = [node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)]
    functions = [name for name in functions if name != "main" and not name.startswith("test")]
    if len(called) == 1 and functions:
        scope[called.pop()] = scope[functions[-1]]


def run(header, code, imports, tests, entry_point, proof):
    write, leave = os.write, os._exit  # An answer may replace them.
    module = types.ModuleType("answer")
    sys.modules["answer"] = module
    scope = module.__dict__

    def execute(text, name):
        exec(compile(text, name, "exec", dont_inherit=True), scope)

    execute(header, "header")
    execute(code, "answer")
    execute(imports, "imports")
    if not entry_point:
        lend_names(code, tests, scope)
    for test in tests:
        execute(test, "test")
    if entry_point:
        scope["check"](scope[entry_point])
    write(1, ("\n" + proof + "\n").encode())
    leave(0)
