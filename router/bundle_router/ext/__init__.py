"""Adapters for agent frameworks, each imported only on request
(`from bundle_router.ext.langchain import …`).

    pydantic_ai     RoutedToolset                     pip install 'bundle-router[pydantic-ai]'
    langchain       RoutedTools (a middleware)        pip install 'bundle-router[langchain]'
    openai_agents   RoutedAgent                       pip install 'bundle-router[openai-agents]'
    temporal        run_worker, route, call …         pip install 'bundle-router[temporal]'

Each gives a framework's own agent loop the tools of one decision. `step_tools` is their common
part, and the base of an adapter for another framework.
"""
