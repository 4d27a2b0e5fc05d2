"""Commands that a shell script would run, found without running anything.

tree-sitter reads the script. Variables, their defaults (`${GPUS:-8}`), arrays, arithmetic, tests,
`case`, functions and here-documents are followed; the output of a command is unknown and empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from steptime.launch.shell_text import RUNTIME_VARIABLES, join_lines, slurm_variables
from steptime.launch.shell_values import calculate, evaluate_test, trim

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_COMMANDS = 10_000  # of a script, loops included
MAX_DEPTH = 20  # of functions that call functions
BLOCKS = {"program", "list", "pipeline", "do_group", "compound_statement", "subshell"}
BLOCKS |= {"else_clause", "ERROR"}
PLAIN_WORDS = {"word", "extglob_pattern", "regex"}
_EXPANSION = re.compile(r"\$\{(#?)(\w+|[@*#?])(\[[@*]\])?(.*)\}", re.DOTALL)


@dataclass(frozen=True)
class ShellCommand:
    """A command with its words after expansion, and the variables that it sees.

    Attributes:
        words: name and arguments.
        environment: variables of the script and of the command.
    """

    words: tuple[str, ...]
    environment: dict[str, str]


@dataclass
class Script:
    """What a script does.

    Attributes:
        commands: commands in the order in which they run.
        files: texts that the script writes by here-documents, by path.
    """

    commands: list[ShellCommand] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)


def read_script(text: str) -> Script:
    """Return the commands of a script.

    Args:
        text: a shell script, or one line of it.
    """
    import tree_sitter
    import tree_sitter_bash

    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
    source = join_lines(text)
    interpreter = _Interpreter(source.encode())
    interpreter.variables.update(RUNTIME_VARIABLES)
    interpreter.variables.update(slurm_variables(text))
    interpreter.run(parser.parse(interpreter.source).root_node)
    return interpreter.script


class _Interpreter:
    """Follows a syntax tree with the values of its variables.

    Attributes:
        source: the script as bytes, to which the tree's positions refer.
        variables: texts and arrays by name.
        script: commands and files so far.
    """

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.variables: dict[str, str | list[str]] = {}
        self.script = Script()
        self._functions: dict[str, Node] = {}
        self._arguments: list[str] = []
        self._depth = 0

    def run(self, node: Node) -> None:
        """Follow a statement."""
        # A node of type `if_statement` is handled by `_run_if_statement`, and so on. Types without
        # a handler change neither variables nor commands.
        handler = getattr(self, f"_run_{node.type}", None)
        if handler is not None:
            handler(node)
        elif node.type in BLOCKS:
            for child in node.named_children:
                self.run(child)

    def _run_variable_assignment(self, node: Node) -> None:
        name, value = self._evaluate_assignment(node)
        self.variables[name] = value

    def _run_variable_assignments(self, node: Node) -> None:
        for child in node.named_children:
            self.run(child)

    _run_declaration_command = _run_variable_assignments  # export, local, declare

    def _evaluate_assignment(self, node: Node) -> tuple[str, str | list[str]]:
        """Return the name and the value of an assignment."""
        name_node = node.named_children[0]
        value_node = node.named_children[-1]
        name = self._source_text(name_node).partition("[")[0]  # without the index of `NAME[0]=`
        has_no_value = value_node is name_node  # `NAME=`
        if has_no_value:
            return name, ""
        is_append = self._source_text(node).startswith(f"{name}+=")
        if value_node.type == "array":
            elements = self._expand_children(value_node)
            return name, [*self._elements_of(name), *elements] if is_append else elements
        text = " ".join(self.expand_words(value_node, is_quoted=True))
        return name, self._variable_text(name) + text if is_append else text

    def _expand_children(self, node: Node) -> list[str]:
        """Return the words that the children of a node expand to."""
        return [word for child in node.named_children for word in self.expand_words(child)]

    def _elements_of(self, name: str) -> list[str]:
        """Return the elements of an array; a text is an array of one, a name not set of none."""
        value = self.variables.get(name, [])
        return value if isinstance(value, list) else [value]

    def _run_function_definition(self, node: Node) -> None:
        self._functions[self._source_text(node.named_children[0])] = node.named_children[-1]

    def _run_list(self, node: Node) -> None:
        left = node.children[0]
        operator = node.children[1]
        right = node.children[-1]
        is_test = left.type == "test_command"
        # No command is run, so each counts as successful: `cd repo && python train.py` goes on.
        succeeds = self._is_true(left) if is_test else True
        self.run(left)
        is_and = operator.type == "&&"  # otherwise `||`
        runs_right = succeeds if is_and else not succeeds
        if runs_right:
            self.run(right)

    def _run_if_statement(self, node: Node) -> None:
        condition = node.child_by_field_name("condition") or node.named_children[0]
        if self._is_true(condition):
            for statement in node.named_children[1:]:
                if statement.type not in {"else_clause", "elif_clause"}:
                    self.run(statement)
            return
        for clause in node.named_children:
            if clause.type == "elif_clause" and self._is_true(clause.named_children[0]):
                for statement in clause.named_children[1:]:
                    self.run(statement)
                return
            if clause.type == "else_clause":  # the last clause: no condition before it was true
                self.run(clause)

    def _run_for_statement(self, node: Node) -> None:
        name = self._source_text(node.named_children[0])
        body = node.named_children[-1]
        values = [word for child in node.named_children[1:-1] for word in self.expand_words(child)]
        for value in values:
            self.variables[name] = value
            self.run(body)

    def _run_case_statement(self, node: Node) -> None:
        subject, *branches = node.named_children
        value = " ".join(self.expand_words(subject, is_quoted=True))
        for branch in branches:
            pattern_nodes = [child for child in branch.named_children if self._is_pattern(child)]
            patterns = [self._source_text(pattern).strip("\"'") for pattern in pattern_nodes]
            if any(fnmatchcase(value, pattern) for pattern in patterns):
                for statement in branch.named_children[len(patterns) :]:  # behind its patterns
                    self.run(statement)
                return

    @staticmethod
    def _is_pattern(node: Node) -> bool:
        kinds = {"extglob_pattern", "word", "string", "raw_string", "number", "concatenation"}
        return node.type in kinds

    def _run_redirected_statement(self, node: Node) -> None:
        # Scripts write configurations with `cat > config.yaml <<EOF`: their text is kept for the
        # commands that read them.
        command = node.named_children[0]
        target_paths = [
            self._source_text(child.named_children[-1]).strip("\"'")
            for child in node.named_children
            if child.type == "file_redirect"
        ]
        heredocs = [child for child in node.named_children if child.type == "heredoc_redirect"]
        for heredoc in heredocs:
            target_paths += self._list_heredoc_targets(heredoc)
        if heredocs:
            words = self._expand_children(command)
            if words[:1] == ["tee"]:  # `tee FILE` writes its input, the here-document
                target_paths += [word for word in words[1:] if not word.startswith("-")]
            text = self._expand_heredoc(heredocs[-1])
            for path in target_paths:
                self.script.files[path.removeprefix("./")] = text
        self.run(command)

    def _list_heredoc_targets(self, heredoc: Node) -> list[str]:
        """Return the paths behind the mark of a here-document: `cat <<EOF > FILE`."""
        return [
            " ".join(self.expand_words(redirect.named_children[-1], is_quoted=True))
            for redirect in heredoc.named_children
            if redirect.type == "file_redirect"
        ]

    def _expand_heredoc(self, node: Node) -> str:
        """Return the text of a here-document, expanded unless its mark is quoted."""
        bodies = [child for child in node.named_children if child.type == "heredoc_body"]
        delimiter = next(child for child in node.named_children if child.type == "heredoc_start")
        if not bodies:  # an empty here-document
            return ""
        is_quoted_delimiter = self._source_text(delimiter)[:1] in {'"', "'", "\\"}
        body = bodies[0]
        if is_quoted_delimiter:  # the text is taken as it is
            return self._source_text(body)
        return self._interpolate(body, body.start_byte, body.end_byte)

    def _run_command(self, node: Node) -> None:
        environment = {name: self._variable_text(name) for name in self.variables}
        words: list[str] = []
        for child in node.named_children:
            is_word = child.type != "comment" and not child.type.endswith("redirect")
            if child.type == "variable_assignment":  # `NAME=value COMMAND`
                name, value = self._evaluate_assignment(child)
                environment[name] = value if isinstance(value, str) else " ".join(value)
            elif is_word:
                words += self.expand_words(child)
        if not words:  # assignments alone
            return
        is_function = words[0] in self._functions
        if is_function and self._depth < MAX_DEPTH:
            self._call_function(words)
        elif len(self.script.commands) < MAX_COMMANDS:
            self.script.commands.append(ShellCommand(tuple(words), environment))

    def _call_function(self, words: list[str]) -> None:
        """Follow a function with its arguments."""
        outer_arguments = self._arguments
        self._arguments = words[1:]
        self._depth += 1
        self.run(self._functions[words[0]])
        self._depth -= 1
        self._arguments = outer_arguments

    def expand_words(self, node: Node, is_quoted: bool = False) -> list[str]:
        """Return the words that a syntax node expands to.

        Args:
            node: a word, string, expansion or concatenation of them.
            is_quoted: do not split the value of a variable at blanks.
        """
        if node.type == "comment":
            return []
        if node.type == "command_name":
            return self.expand_words(node.named_children[0]) if node.named_children else []
        elements = self._array_elements(node)
        if elements is not None:
            return elements
        # The shell splits the value of a variable at blanks unless it is quoted.
        if node.type in {"simple_expansion", "expansion", "command_substitution"}:
            value = self._expand(node)
            return [value] if is_quoted else value.split()
        return [self._evaluate(node)]

    def _array_elements(self, node: Node) -> list[str] | None:
        """Return the elements where a node is `${NAME[@]}`, quoted or not, or `"$@"`."""
        text = self._source_text(node).strip('"')
        if text in {"$@", "$*", "${@}", "${*}"}:
            return list(self._arguments)
        match = _EXPANSION.fullmatch(text)
        if match is None:
            return None
        is_length, name, all_elements, operation = match.groups()
        if not all_elements or is_length or operation:  # no `${NAME[@]}` but a text
            return None
        value = self.variables.get(name, [])
        return list(value) if isinstance(value, list) else value.split()

    def _evaluate(self, node: Node) -> str:
        """Return the text of a word or string."""
        text = self._source_text(node)
        match node.type:
            case "raw_string":
                return text[1:-1]  # without its quotes
            case "ansi_c_string":
                return text[2:-1]  # $'...'
            case "string_content":
                return re.sub(r"\\([\"\\$`])", r"\1", text)
            case "simple_expansion" | "expansion" | "command_substitution":
                return self._expand(node)
            case "arithmetic_expansion":
                return self._calculate(text[3:-2])  # $((...))
            case "concatenation":
                return "".join(self._evaluate(child) for child in node.named_children)
        if node.type in PLAIN_WORDS and not node.named_children:
            return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)
        quote_bytes = 1 if node.type == "string" else 0  # "..." without its quotes
        start = node.start_byte + quote_bytes
        return self._interpolate(node, start, node.end_byte - quote_bytes)

    def _interpolate(self, node: Node, start: int, end: int) -> str:
        """Return the source of a node between two bytes, with expansions as their values."""
        position = start
        parts = []
        for child in node.named_children:
            if child.start_byte < position or child.start_byte >= end:  # outside of the range
                continue
            parts += [self.source[position : child.start_byte].decode(), self._evaluate(child)]
            position = child.end_byte
        return "".join([*parts, self.source[position:end].decode()])

    def _expand(self, node: Node) -> str:
        """Return the value of `$NAME`, `${NAME...}` or of a command, which is unknown and empty."""
        text = self._source_text(node)
        if node.type == "command_substitution":  # `$(COMMAND)`, which is not run
            return ""
        match = _EXPANSION.fullmatch(text)
        if match is None:
            return self._variable_text(text.removeprefix("$"))
        is_length, name, _, operation = match.groups()
        if is_length:
            return str(len(self.variables.get(name, "")))
        value = self._variable_text(name)
        if not operation:
            return value
        operator = re.match(r":?[-=+?]", operation)
        if operator:  # `${NAME:-default}`, `${NAME:+text if it is set}`
            default = self._expand_default(node, operator[0])
            if "+" in operator[0]:
                return default if value else ""
            return value or default
        return trim(value, operation)

    def _expand_default(self, node: Node, operator: str) -> str:
        """Return the expanded text behind the operator of `${NAME:-text}`."""
        text = self._source_text(node)
        text_before = text[: text.index(operator) + len(operator)]
        start = node.start_byte + len(text_before.encode())
        end = node.end_byte - len("}")
        return self._interpolate(node, start, end).strip("\"'")

    def _variable_text(self, name: str) -> str:
        """Return the value of a variable as one text; "" where it is not set."""
        if name == "#":
            return str(len(self._arguments))
        if name.isdigit():
            index = int(name) - 1
            return self._arguments[index] if 0 <= index < len(self._arguments) else ""
        value = self.variables.get(name, "")
        return value if isinstance(value, str) else " ".join(value)

    def _calculate(self, expression: str) -> str:
        """Return the value of an arithmetic expression, "" where it has none."""

        def value_of(match: re.Match[str]) -> str:
            name, default = match.groups()
            return self._variable_text(name) or default or "0"

        # Variables of arithmetic are `NAME`, `$NAME`, `${NAME}` or `${NAME:-8}`.
        substituted = re.sub(r"\$?\{?([A-Za-z_]\w*)(?::-(\d+))?\}?", value_of, expression)
        return calculate(substituted)

    def _is_true(self, node: Node) -> bool:
        """Return whether a condition is true; one that needs a command to run is not."""
        if node.type == "negated_command":
            negated = node.named_children[0]
            return negated.type == "test_command" and not self._is_true(negated)
        if node.type != "test_command":  # a command, whose result is unknown: `else` is followed
            return False
        words = [word for child in node.named_children for word in self._test_words(child)]
        return evaluate_test(words)

    def _test_words(self, node: Node) -> Iterator[str]:
        """Yield the words of a test, the value of each variable as one word."""
        if node.type in {"unary_expression", "binary_expression", "parenthesized_expression"}:
            for child in node.children:
                yield from self._test_words(child)
            return
        is_operand = node.is_named and node.type != "test_operator"
        if is_operand:
            yield " ".join(self.expand_words(node, is_quoted=True))
        else:  # an operator, such as `-z` or `==`
            yield self._source_text(node)

    def _source_text(self, node: Node) -> str:
        return self.source[node.start_byte : node.end_byte].decode()
